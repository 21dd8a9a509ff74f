"""One update of a policy: gradients gathered micro-batch by micro-batch, then one optimizer step.

Every sum is divided by the response tokens of the whole update, so how it is cut changes nothing but rounding.
Shapes: R rows, L places, D hidden size, T response tokens of a micro-batch.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from palmette.errors import BackendError, RunError
from palmette.train.batch import make_batch
from palmette.train.logprobs import token_logprobs
from palmette.train.loss import LossSettings, token_losses
from palmette.train.model_parts import body_of, head_of, refuse_dropout
from palmette.train.optimizer import AdamSettings, HostAdamW, Optimizer, adamw
from palmette.train.samples import Sample, check_update, micro_batches

Work = Callable[[Sequence[Sample]], torch.Tensor]


class RunPieces(Protocol):
    """Who works on a micro-batch: in one piece, or in smaller ones where it does not fit. `Guard.run` is one."""

    def __call__(
        self,
        items: Sequence[Sample],
        work: Work,
        /,
        *,
        cost: Callable[[Sample], int],
        group: Callable[[Sample], Hashable],
    ) -> list[torch.Tensor]:
        """Work on every item once, in order; return what each piece gave. Work that raised leaves nothing behind."""


@dataclass(frozen=True)
class Savings:
    """What an update gives up in time to hold less."""

    checkpointing: bool = False
    """Keep only each layer's input, and compute the layer again in the backward pass."""
    host_optimizer: bool = False
    """Keep optimizer state in host memory. On a CPU it is there anyway."""
    host_activations: bool = False
    """Keep what the backward pass needs in host memory. On a CPU it is there anyway."""


@dataclass(frozen=True)
class UpdateResult:
    """What one update did: means over its response tokens, and the gradient's norm before clipping."""

    loss: float
    kl: float
    clipped_share: float
    entropy: float
    gradient_norm: float
    response_tokens: int
    pieces: int


class Learner:
    """A policy that learns. Trains the weights that want gradients; raises BackendError where the model cannot be run.

    `notes` says which savings do nothing on this device.
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
        self._chunk_tokens = chunk_tokens
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not self._weights:
            raise BackendError("no weight of the model wants a gradient: call train_all or train_lora first")
        self._body = body_of(model)
        head_of(model)
        self._device = self._weights[0].device
        self.notes = _idle_savings(self._savings, self._device)
        refuse_dropout(model)
        if self._savings.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        on_host = self._savings.host_optimizer and self._device.type != "cpu"
        make: Callable[..., Optimizer] = HostAdamW if on_host else adamw
        self._optimizer = make(self._weights, self._adam)
        self._done: list[Sequence[Sample]] = []
        self._half_added = False

    def update(
        self, samples: Sequence[Sample], *, micro_batch_tokens: int, run_pieces: RunPieces | None = None
    ) -> UpdateResult:
        """Change the weights by one step on all samples; nothing is changed where anything is raised.

        Micro-batches hold up to `micro_batch_tokens` with their padding, groups whole where they fit. Each goes
        through `run_pieces`. Raises BudgetError where one sample is longer, RunError where gradients are not finite.
        """
        try:
            sums, pieces = self.accumulate(samples, micro_batch_tokens=micro_batch_tokens, run_pieces=run_pieces)
            norm = float(self.clip())
            if not math.isfinite(norm):
                raise RunError("the update's gradient is not finite, so no weight was changed: lower the learning rate")
            self.apply()
        finally:
            self.forget()
        tokens = sum(len(sample.response) for sample in samples)
        loss, kl, clipped, entropy = sums.tolist()
        return UpdateResult(loss, kl, clipped, entropy, norm, tokens, pieces)

    def accumulate(
        self, samples: Sequence[Sample], *, micro_batch_tokens: int, run_pieces: RunPieces | None = None
    ) -> tuple[torch.Tensor, int]:
        """Gather the gradients of all samples; return their mean loss, divergence, clipped share and entropy.

        The second number is how many pieces were computed.
        """
        vocabulary = len(head_of(self.model).weight_VD)
        check_update(samples, with_reference=self._loss.kl_weight != 0, vocabulary=vocabulary)
        self.forget()
        total = sum(len(sample.response) for sample in samples)
        run = run_pieces or _in_one_piece
        was_training = self.model.training
        self.model.train()  # Layers are only checkpointed in train mode; dropout, which it would switch on, is refused.
        try:
            sums = [
                given
                for batch in micro_batches(samples, micro_batch_tokens)
                for given in run(
                    batch,
                    lambda piece: self._piece(piece, total),
                    cost=lambda sample: sample.fed_tokens,
                    group=lambda sample: sample.group,
                )
            ]
        finally:
            self.model.train(was_training)
        return torch.stack(sums).sum(0), len(sums)

    def clip(self) -> torch.Tensor:
        """Scale the gathered gradients down to the largest norm allowed; return the norm they had."""
        most = self._adam.max_norm
        return nn.utils.clip_grad_norm_(self._weights, math.inf if most is None else most)

    def apply(self) -> None:
        """Change the weights by the gathered gradients."""
        self._optimizer.step()

    def forget(self) -> None:
        """Drop the gathered gradients."""
        self._clear()
        self._done = []
        self._half_added = False

    def _clear(self) -> None:
        for weight in self._weights:
            weight.grad = None

    def _piece(self, samples: Sequence[Sample], total: int) -> torch.Tensor:
        """Add the gradient of some samples, or of none where it raises.

        A backward pass that dies has added some weights' gradients and not others'. A second set to be safe would cost
        as much as all gradients, in every update; instead the rare update that this happens to starts over: finished
        pieces are computed again, at the sizes that fit.
        """
        if self._half_added:
            self._clear()
            for piece in self._done:
                self._backward(piece, total)
            self._half_added = False
        sums = self._backward(samples, total)
        self._done.append(samples)
        return sums

    def _backward(self, samples: Sequence[Sample], total: int) -> torch.Tensor:
        head = head_of(self.model, self._temperature)
        wide = torch.promote_types(head.weight_VD.dtype, torch.float32)
        batch = make_batch(samples, device=self._device, dtype=wide)
        with self._saved_elsewhere():
            hidden_RLD = self._body(input_ids=batch.tokens_RL, use_cache=False).last_hidden_state
            hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, batch.places_T)
            logprobs_T, entropies_T = token_logprobs(hidden_TD, head, batch.chosen_T, chunk_tokens=self._chunk_tokens)
            del hidden_RLD, hidden_TD
            losses = token_losses(
                logprobs_T, entropies_T, batch.advantages_T, batch.old_T, batch.reference_T, self._loss
            )
            loss = losses.loss_T.sum() / total
        sums = torch.stack(
            [loss.detach(), *(part_T.detach().sum() / total for part_T in (losses.kl_T, losses.clipped_T, entropies_T))]
        )
        before, self._half_added = self._half_added, True
        loss.backward()  # type: ignore[no-untyped-call]
        self._half_added = before  # Still true while finished pieces are being brought back.
        return sums

    def _saved_elsewhere(self) -> AbstractContextManager[object]:
        if self._savings.host_activations and self._device.type != "cpu":
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        return nullcontext()


def _in_one_piece(items: Sequence[Sample], work: Work, /, **_: object) -> list[torch.Tensor]:
    return [work(items)]


def _idle_savings(savings: Savings, device: torch.device) -> list[str]:
    if device.type != "cpu":
        return []
    wanted = {"host_optimizer": savings.host_optimizer, "host_activations": savings.host_activations}
    return [f"{name} does nothing: the model is in host memory already" for name, on in wanted.items() if on]


class GuardedLearner:
    """Updates by another learner. Sums are those of the whole update, so pieces change nothing but rounding.

    Weights, gradients and optimizer state cannot be cut: where they alone do not fit, no guard helps.
    """

    def __init__(
        self, learner: Learner, run_pieces: RunPieces, phase: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._learner = learner
        self._run_pieces = run_pieces
        self._phase = phase

    def update(self, samples: Sequence[Sample], *, micro_batch_tokens: int) -> UpdateResult:
        """Change the weights by one step on all samples; see the learner."""
        with self._phase():
            return self._learner.update(samples, micro_batch_tokens=micro_batch_tokens, run_pieces=self._run_pieces)
