"""One update of a policy: gradients accumulated micro-batch by micro-batch, then one optimizer step.

Every sum is divided by the counted response tokens of the whole update: how it is split changes nothing but rounding.
Shapes: R rows, L positions, D hidden size, T counted response tokens of a micro-batch, P pieces.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from palmette.errors import BackendError, ConfigError, RunError
from palmette.memory.guard import RunPieces, run_whole
from palmette.train.batch import make_batch
from palmette.train.logprobs import token_logprobs
from palmette.train.loss import LossSettings, token_losses
from palmette.train.model_parts import body_of, head_of
from palmette.train.optimizer import AdamSettings, AdamW
from palmette.train.samples import Sample, check_update, micro_batches
from palmette.train.token_batch import TokenBatch
from palmette.train.trainable import check_trainable


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
class UpdateResult:
    """Statistics of one update: means over the response tokens that count, and the gradient norm before clipping.

    Ratios are exp(logprob - old_logprob) before the clip: the smallest, the mean and the largest. They are 1 if the
    samples have no `old_logprobs`, and 1 up to rounding if the policy has not changed since it generated them.
    """

    loss: float
    kl: float
    clipped_share: float
    entropy: float
    ratio_low: float
    ratio_mean: float
    ratio_high: float
    gradient_norm: float
    response_tokens: int
    pieces: int


class Learner:
    """Trains those weights of a policy that have `requires_grad`. Raises BackendError if the model cannot be trained.

    Log-probabilities are computed at `temperature`, which must be that of all samples: a policy that sampled at 0.7 is
    trained at 0.7. `notes` says which savings have no effect on this device.
    """

    def __init__(
        self,
        model: Any,
        *,
        loss: LossSettings | None = None,
        adam: AdamSettings | None = None,
        savings: Savings | None = None,
        temperature: float = 1.0,
        chunk_tokens: int | None = None,
    ) -> None:
        self.model = model
        self._loss = loss or LossSettings()
        self._adam = adam or AdamSettings()
        self._savings = savings or Savings()
        self._temperature = temperature
        if chunk_tokens is not None and chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens is {chunk_tokens}: give a whole number of 1 or more, or None")
        self._chunk_tokens = chunk_tokens
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not self._weights:
            raise BackendError("no weight of the model has requires_grad: call train_all or train_lora first")
        self._body = body_of(model)
        self._device = self._weights[0].device
        self.notes = _idle_savings(self._savings, self._device)
        check_trainable(model)
        if self._savings.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        host = torch.device("cpu") if self._savings.host_optimizer else None
        self._optimizer = AdamW(self._weights, self._adam, device=host)
        self._done: list[Sequence[Sample]] = []
        self._half_added = False

    def update(
        self, samples: Sequence[Sample], *, micro_batch_tokens: int, run_pieces: RunPieces | None = None
    ) -> UpdateResult:
        """Change the weights by one optimizer step on all samples.

        Micro-batches of at most `micro_batch_tokens`, padding included, go through `run_pieces` one after the other;
        groups stay whole if they fit. Raises BudgetError if a sample is longer, RunError if gradients are not finite.
        If anything is raised before the optimizer step, no weight has changed. If weights are not finite after it,
        they are lost, and the RunError says so.
        """
        try:
            sums, pieces = self.accumulate(samples, micro_batch_tokens=micro_batch_tokens, run_pieces=run_pieces)
            norm = float(self.clip())
            if not math.isfinite(norm):
                raise RunError("the update's gradient is not finite, so no weight was changed: lower the learning rate")
            self.apply()
            self._check_weights()
        finally:
            self.forget()
        loss, kl, clipped, entropy, ratio_mean, ratio_low, ratio_high = sums.tolist()
        return UpdateResult(
            loss=loss,
            kl=kl,
            clipped_share=clipped,
            entropy=entropy,
            ratio_low=ratio_low,
            ratio_mean=ratio_mean,
            ratio_high=ratio_high,
            gradient_norm=norm,
            response_tokens=_counted_tokens(samples),
            pieces=pieces,
        )

    def accumulate(
        self, samples: Sequence[Sample], *, micro_batch_tokens: int, run_pieces: RunPieces | None = None
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
        was_training = self.model.training
        self.model.train()  # Gradient checkpointing needs train mode. Noise, which that would switch on, is refused.
        try:
            sums = [
                piece_sums
                for batch in micro_batches(samples, micro_batch_tokens)
                for piece_sums in run(
                    batch,
                    lambda piece: self._piece(piece, total),
                    cost=lambda sample: sample.fed_tokens,
                    group=lambda sample: sample.group,
                )
            ]
        finally:
            self.model.train(was_training)
        parts_P7 = torch.stack(sums)
        # Ratios are summed first and divided last: a sum of ones is exact, so that their mean is exactly 1.
        ratios = parts_P7[:, 4].sum() / total, parts_P7[:, 5].amin(), parts_P7[:, 6].amax()
        return torch.cat([parts_P7[:, :4].sum(0), torch.stack(ratios)]), len(sums)

    def clip(self) -> torch.Tensor:
        """Clip the accumulated gradients to `max_norm`; return their norm before that."""
        max_norm = self._adam.max_norm
        return nn.utils.clip_grad_norm_(self._weights, math.inf if max_norm is None else max_norm)

    def apply(self) -> None:
        """Change the weights by the accumulated gradients: one optimizer step."""
        self._optimizer.step()

    @torch.no_grad()
    def _check_weights(self) -> None:
        """Raise RunError if a trained weight is not finite. Reads the weights once, copies nothing.

        What a step does is known exactly only after it, and a copy to go back to would cost as much memory as the
        weights in every update.
        """
        # Smallest and largest are NaN if any weight is. 0.04 s for 135 M weights on one core; isfinite of all: 0.5 s.
        finite = [bound.isfinite() for weight in self._weights if weight.numel() for bound in weight.aminmax()]
        if not torch.stack(finite).all():
            raise RunError(
                f"the update made weights that are not finite, at a learning rate of {self._adam.learning_rate}. "
                "They are lost: load the last checkpoint, and go on with a lower learning rate"
            )

    def forget(self) -> None:
        """Drop the accumulated gradients."""
        self._drop_gradients()
        self._done = []
        self._half_added = False

    def _drop_gradients(self) -> None:
        for weight in self._weights:
            weight.grad = None

    def _piece(self, samples: Sequence[Sample], total: int) -> torch.Tensor:
        """Add the gradients of one piece, and first repair what a failed call has left.

        A backward pass that fails has added the gradients of some weights and not of others. A second set of gradients
        to undo that would cost their memory in every update. Instead, only after such a failure, all gradients are
        dropped and the finished pieces computed again, at the sizes that fit.
        """
        if self._half_added:
            self._drop_gradients()
            for piece in self._done:
                self._backward(piece, total)
            self._half_added = False
        sums = self._backward(samples, total)
        self._done.append(samples)
        return sums

    def _backward(self, samples: Sequence[Sample], total: int) -> torch.Tensor:
        """Run forward and backward pass; return the seven sums of the samples for `accumulate`."""
        head = head_of(self.model, self._temperature)
        dtype = torch.promote_types(head.weight_VD.dtype, torch.float32)
        batch = make_batch(samples, device=self._device, dtype=dtype)
        with self._saved_tensors():
            hidden_RLD = self._body(input_ids=batch.tokens_RL, use_cache=False).last_hidden_state
            hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, batch.places_T)
            logprobs_T, entropies_T = token_logprobs(hidden_TD, head, batch.chosen_T, chunk_tokens=self._chunk_tokens)
            del hidden_RLD, hidden_TD
            tokens = TokenBatch(
                logprobs_T, entropies_T, batch.advantages_T, batch.old_T, batch.reference_T, batch.sequence_T
            )
            losses = token_losses(tokens, self._loss)
            loss = losses.loss_T.sum() / total
        means = [part_T.detach().sum() / total for part_T in (losses.kl_T, losses.clipped_T, entropies_T)]
        ratios = losses.ratio_T.sum(), losses.ratio_T.amin(), losses.ratio_T.amax()
        sums = torch.stack([loss.detach(), *means, *ratios])
        before, self._half_added = self._half_added, True
        loss.backward()  # type: ignore[no-untyped-call]
        self._half_added = before  # Still true while finished pieces are computed again.
        return sums

    def _saved_tensors(self) -> AbstractContextManager[object]:
        """Return a context that keeps tensors saved for the backward pass in host memory, if that is set."""
        if self._savings.host_activations and self._device.type != "cpu":
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        return nullcontext()


def _counted_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.counted_tokens for sample in samples)


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

    def update(self, samples: Sequence[Sample], *, micro_batch_tokens: int) -> UpdateResult:
        """Change the weights by one optimizer step on all samples; see `Learner.update`."""
        with self._phase():
            return self._learner.update(samples, micro_batch_tokens=micro_batch_tokens, run_pieces=self._run_pieces)
