"""One update of a policy: gradients accumulated micro-batch by micro-batch, then one optimizer step.

Every sum is divided by the counted response tokens of the whole update: how it is split changes nothing but rounding.
Shapes: R rows, L positions, D hidden size, T counted response tokens of a micro-batch, P pieces.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from palmette.errors import BackendError, ConfigError, RunError
from palmette.memory.guard import RunPieces, run_whole
from palmette.train.logprobs import no_logprobs, token_logprobs
from palmette.train.model_parts import Head, body_of, head_of, matrices_of
from palmette.train.packed.backward import Scored, run_backward
from palmette.train.packed.check import possible_sharing
from palmette.train.packed.forward import TrieModel
from palmette.train.packed.passes import depth_first
from palmette.train.packed.sharing import Mode, Sharing, batches_of, check_sharing
from palmette.train.packed.trie import build_trie
from palmette.train.samples import Sample, check_update
from palmette.train.trainable import check_trainable
from palmette.train.update.batch import Given, given_by, make_rows
from palmette.train.update.finite import are_finite, check_gradient, lost_weights
from palmette.train.update.loss import LossSettings, PolicyLoss, token_losses
from palmette.train.update.optimizer import AdamSettings, AdamW
from palmette.train.update.token_batch import TokenBatch
from palmette.train.update.update_result import UpdateResult, means_of, merged_sums, pass_sums, result_of, weighed

OPTIMIZER, VALUE_HEAD = "optimizer.", "value_head."
"""Begin the names of optimizer state and of a critic's head in a checkpoint."""
"""Begin the names of optimizer state and of a value head's weights in a checkpoint."""


@dataclass(frozen=True)
class Savings:
    """Settings that save memory and cost time."""

    checkpointing: bool = False
    """Gradient checkpointing: keep only each layer's input, and compute the layer again in the backward pass."""
    host_optimizer: bool = False
    """Keep optimizer state in host memory. On a CPU it is there anyway."""
    host_activations: bool = False
    """Keep tensors saved for the backward pass in host memory. On a CPU they are there anyway."""


@dataclass(frozen=True)
class _Job:
    """What all pieces of an update have in common: the tokens by which sums are divided, and how samples are computed.

    `cost` is the size of all samples of the batch that is cut into pieces, in fed tokens.
    """

    total: int
    on_policy: bool
    mode: Mode
    most_tokens: int
    cost: int


class Learner:
    """Trains those weights of a policy that have `requires_grad`. Raises BackendError if the model cannot be trained.

    Log-probabilities are computed at `temperature`, which must be that of all samples: a policy that sampled at 0.7 is
    trained at 0.7. `policy_loss` is an algorithm's term of the loss, None for PPO's. `sharing` tells whether prefixes
    that samples share are computed once; a model that cannot do that shares nothing. `notes` says so, and which savings
    have no effect on this device. With a `value_head`, a critic's head on the policy's hidden states, the loss gets its
    values, and its weights are trained too; with `values_only` the loss gets nothing else, and no logits are computed.
    `optimizer` has the state that a checkpoint needs.
    """

    def __init__(
        self,
        model: Any,
        *,
        loss: LossSettings | None = None,
        policy_loss: PolicyLoss | None = None,
        adam: AdamSettings | None = None,
        savings: Savings | None = None,
        temperature: float = 1.0,
        chunk_tokens: int | None = None,
        sharing: Sharing = "auto",
        value_head: nn.Module | None = None,
        values_only: bool = False,
    ) -> None:
        check_sharing(sharing)
        self.model = model
        self._loss = loss or LossSettings()
        self._policy_loss = policy_loss
        self._adam = adam or AdamSettings()
        self._savings = savings or Savings()
        self._temperature = temperature
        if chunk_tokens is not None and chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens is {chunk_tokens}: give a whole number of 1 or more, or None")
        self._chunk_tokens = chunk_tokens
        self._value_head = value_head
        self._values_only = values_only
        named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        if value_head is not None:
            named |= {
                f"{VALUE_HEAD}{name}": weight for name, weight in value_head.named_parameters() if weight.requires_grad
            }
        self._weights = list(named.values())
        if not self._weights:
            raise BackendError("no weight of the model has requires_grad: call train_all or train_lora first")
        self._body = body_of(model)
        self._device = self._weights[0].device
        self.notes = _idle_savings(self._savings, self._device)
        check_trainable(model)
        self._sharing, more = possible_sharing(model, sharing)
        self.notes += more
        if self._savings.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        host = torch.device("cpu") if self._savings.host_optimizer else None
        matrices = matrices_of(model) if self._adam.matrices == "muon" else []
        self.optimizer = AdamW(self._weights, self._adam, device=host, names=list(named), matrices=matrices)
        self._done: list[tuple[Sequence[Sample], _Job]] = []
        self._half_added = False

    def update(
        self,
        samples: Sequence[Sample],
        *,
        micro_batch_tokens: int,
        run_pieces: RunPieces | None = None,
        on_policy: bool = False,
        learning_rate: float | None = None,
    ) -> UpdateResult:
        """Change the weights by one optimizer step on all samples.

        At most `micro_batch_tokens` tokens, padding included, are held at a time, as far as `run_pieces` does not cut
        them further; neighbors of one group stay together if they fit. If `on_policy`, the policy has not changed since
        it generated the samples: the ratio in the loss is exactly 1, and `old_logprobs` are used for the ratios of the
        result only. `learning_rate` is that of this step, by default that of the settings.

        Raises BudgetError if a sample is longer, RunError if gradients are not finite. If anything is raised before the
        optimizer step, no weight has changed. If weights are not finite after it, they are lost, and the RunError says
        so.
        """
        try:
            sums, pieces = self.accumulate(
                samples, micro_batch_tokens=micro_batch_tokens, run_pieces=run_pieces, on_policy=on_policy
            )
            norm = float(self.clip())
            check_gradient(norm)
            self.apply(learning_rate)
            self._check_weights(self._adam.learning_rate if learning_rate is None else learning_rate)
        finally:
            self.forget()
        return result_of(sums.tolist(), gradient_norm=norm, response_tokens=_counted_tokens(samples), pieces=pieces)

    def accumulate(
        self,
        samples: Sequence[Sample],
        *,
        micro_batch_tokens: int,
        run_pieces: RunPieces | None = None,
        on_policy: bool = False,
    ) -> tuple[torch.Tensor, int]:
        """Accumulate the gradients of all samples; return seven statistics and the number of pieces.

        They are the means of loss, KL divergence, clipped share, entropy and ratio, then the smallest and the largest
        ratio.
        """
        check_update(
            samples,
            with_reference=self._loss.kl_weight != 0,
            vocabulary=len(head_of(self.model).weight_VD),
            temperature=self._temperature,
        )
        self.forget()
        total = _counted_tokens(samples)
        run = run_pieces or run_whole
        planned = batches_of(samples, micro_batch_tokens, self._sharing)
        was_training = self.model.training
        self.model.train()  # Gradient checkpointing needs train mode. Noise, which that would switch on, is refused.
        sums: list[torch.Tensor] = []
        try:
            for batch in planned.batches:
                job = _Job(total, on_policy, planned.mode, micro_batch_tokens, _fed_tokens(batch))
                sums += run(
                    batch,
                    lambda piece, job=job: self._piece(piece, job),  # type: ignore[misc]
                    cost=lambda sample: sample.fed_tokens,
                    group=lambda sample: sample.group,
                )
        finally:
            self.model.train(was_training)
        return means_of(sums, total), len(sums)

    def clip(self) -> torch.Tensor:
        """Clip the accumulated gradients to `max_norm`; return their norm before that."""
        max_norm = self._adam.max_norm
        return nn.utils.clip_grad_norm_(self._weights, math.inf if max_norm is None else max_norm)

    def apply(self, learning_rate: float | None = None) -> None:
        """Change the weights by the accumulated gradients: one optimizer step, at this learning rate if it is given."""
        self.optimizer.step(learning_rate)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what the next updates depend on beside the model's weights, by name: optimizer state, a value head."""
        held = {f"{OPTIMIZER}{name}": tensor for name, tensor in self.optimizer.state_dict().items()}
        if self._value_head is not None:
            held |= {f"{VALUE_HEAD}{name}": tensor for name, tensor in self._value_head.state_dict().items()}
        return held

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state_dict` returned. Raises RunError if it is of another model."""
        if self._value_head is not None:
            own = {f"{VALUE_HEAD}{name}": name for name in self._value_head.state_dict()}
            if not own.keys() <= tensors.keys():
                raise RunError("the checkpoint has no value head: it was trained without a critic")
            self._value_head.load_state_dict({short: tensors[name] for name, short in own.items()})
        found = {name: tensor for name, tensor in tensors.items() if name.startswith(OPTIMIZER)}
        self.optimizer.load_state_dict({name.removeprefix(OPTIMIZER): found[name] for name in found})

    def _check_weights(self, learning_rate: float) -> None:
        """Raise RunError if a trained weight is not finite.

        What a step does is known exactly only after it, and a copy to go back to would cost as much memory as the
        weights in every update.
        """
        if not are_finite(self._weights):
            raise lost_weights(learning_rate)

    def forget(self) -> None:
        """Drop the accumulated gradients."""
        self._drop_gradients()
        self._done = []
        self._half_added = False

    def _drop_gradients(self) -> None:
        for weight in self._weights:
            weight.grad = None

    def _piece(self, samples: Sequence[Sample], job: _Job) -> torch.Tensor:
        """Add the gradients of one piece, and first repair what a failed call has left; return its statistics.

        A backward pass that fails has added the gradients of some weights and not of others. A second set of gradients
        to undo that would cost their memory in every update. Instead, only after such a failure, all gradients are
        dropped and the finished pieces computed again, at the sizes that fit.
        """
        if self._half_added:
            self._drop_gradients()
            for piece, its_job in self._done:
                self._backward(piece, its_job)
            self._half_added = False
        sums = self._backward(samples, job)
        self._done.append((samples, job))
        return sums

    def _backward(self, samples: Sequence[Sample], job: _Job) -> torch.Tensor:
        """Run forward and backward pass; return the statistics of the samples."""
        head = head_of(self.model, self._temperature)
        before = self._half_added  # Still true while finished pieces are computed again.
        with self._saved_tensors():
            sums = self._on_rows(samples, job, head) if job.mode == "off" else self._on_trie(samples, job, head)
        self._half_added = before
        return sums

    def _on_rows(self, samples: Sequence[Sample], job: _Job, head: Head) -> torch.Tensor:
        """Compute each sample as a row of its own."""
        rows, given = make_rows(samples, self._device), self._given_by(samples, head)
        hidden_RLD = self._body(input_ids=rows.tokens_RL, use_cache=False).last_hidden_state
        hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, rows.places_T)
        if self._values_only:
            logprobs_T, entropies_T = no_logprobs(hidden_TD)
        else:
            logprobs_T, entropies_T = token_logprobs(hidden_TD, head, rows.chosen_T, chunk_tokens=self._chunk_tokens)
        values_T = None if self._value_head is None else self._value_head(hidden_TD).flatten()
        del hidden_RLD, hidden_TD
        tokens = given.with_outputs(logprobs_T, entropies_T, values_T, on_policy=job.on_policy)
        loss, sums = self._loss_of(tokens, given, job)
        del logprobs_T, entropies_T, values_T, tokens
        self._half_added = True
        loss.backward()  # type: ignore[no-untyped-call]
        return sums

    def _on_trie(self, samples: Sequence[Sample], job: _Job, head: Head) -> torch.Tensor:
        """Compute each distinct prefix once, depth first if not all of them fit the limit of tokens.

        If a guard has cut the samples into pieces, a piece may hold its share of the limit: a smaller piece then holds
        less memory, also where the limit is below what it computes in all.
        """
        longest = max(sample.fed_tokens for sample in samples)
        most_tokens = max(longest, job.most_tokens * _fed_tokens(samples) // job.cost)
        trie = build_trie(samples)
        steps = depth_first(trie, len(trie.tokens) if job.mode == "packed" else most_tokens)
        parts: list[torch.Tensor] = []

        def loss_of(scored: Scored) -> torch.Tensor:
            given = self._given_by([samples[trie.order[place]] for place in scored.samples], head)
            tokens = given.with_outputs(
                scored.logprobs_P[scored.places_T],
                scored.entropies_P[scored.places_T],
                None if scored.values_P is None else scored.values_P[scored.places_T],
                on_policy=job.on_policy,
            )
            loss, sums = self._loss_of(tokens, given, job)
            parts.append(sums)
            self._half_added = True
            return loss

        model = TrieModel(
            self.model,
            head,
            chunk_tokens=self._chunk_tokens,
            value_head=self._value_head,
            values_only=self._values_only,
        )
        run_backward(model, trie, steps, loss_of)
        return merged_sums(parts)

    def _given_by(self, samples: Sequence[Sample], head: Head) -> Given:
        dtype = torch.promote_types(head.weight_VD.dtype, torch.float32)
        return given_by(samples, device=self._device, dtype=dtype)

    def _loss_of(self, tokens: TokenBatch, given: Given, job: _Job) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of some samples, divided by the update's tokens, and their statistics."""
        losses = token_losses(tokens, self._loss, self._policy_loss)
        loss = weighed(losses, given, job.total)
        return loss, pass_sums(loss.detach(), losses, tokens, given, job.total)

    def _saved_tensors(self) -> AbstractContextManager[object]:
        """Return a context that keeps tensors saved for the backward pass in host memory, if that is set."""
        if self._savings.host_activations and self._device.type != "cpu":
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        return nullcontext()


def _counted_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.counted_tokens for sample in samples)


def _fed_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.fed_tokens for sample in samples)


def _idle_savings(savings: Savings, device: torch.device) -> list[str]:
    if device.type != "cpu":
        return []
    on_host = {"host_optimizer": savings.host_optimizer, "host_activations": savings.host_activations}
    return [f"{name} has no effect: the model is in host memory already" for name, is_set in on_host.items() if is_set]


class GuardedLearner:
    """A learner with out-of-memory retry: splits micro-batches into pieces that fit, which changes rounding only.

    Weights, gradients and optimizer state are not split: if they alone do not fit, a retry does not help.
    """

    def __init__(
        self, learner: Learner, run_pieces: RunPieces, phase: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._learner = learner
        self._run_pieces = run_pieces
        self._phase = phase

    def update(
        self,
        samples: Sequence[Sample],
        *,
        micro_batch_tokens: int,
        on_policy: bool = False,
        learning_rate: float | None = None,
    ) -> UpdateResult:
        """Change the weights by one optimizer step on all samples; see `Learner.update`."""
        with self._phase():
            return self._learner.update(
                samples,
                micro_batch_tokens=micro_batch_tokens,
                run_pieces=self._run_pieces,
                on_policy=on_policy,
                learning_rate=learning_rate,
            )
