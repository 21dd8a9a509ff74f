"""One update of a policy: gradients gathered micro-batch by micro-batch, then one optimizer step.

Every sum is divided by the counted response tokens of the whole update, so how it is cut changes nothing but rounding.
Shapes: R rows, L places, D hidden size, T counted response tokens of a micro-batch, P pieces.
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
    """What one update did: means over the response tokens that count, and the gradient's norm before clipping.

    Ratios are exp(logprob - old_logprob) before the clip: their least, mean and largest. They are 1 where the samples
    have no `old_logprobs`, and 1 but for rounding where the policy is still the one that wrote them.
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
    """A policy that learns. Trains the weights that want gradients; raises BackendError where the model cannot be run.

    Log-probabilities are computed at `temperature`, and samples have to be at the same one: a policy that sampled at
    0.7 learns at 0.7. `notes` says which savings do nothing on this device.
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
        """Change the weights by one step on all samples.

        Micro-batches hold up to `micro_batch_tokens` with their padding, groups whole where they fit. Each goes
        through `run_pieces`. Raises BudgetError where one sample is longer, RunError where gradients are not finite;
        whatever is raised before the step, nothing is changed. Weights that are not finite after it are lost, and the
        RunError raised then says so.
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
        """Gather the gradients of all samples; return seven numbers, and how many pieces were computed.

        They are the means of loss, divergence, clipped share, entropy and ratio, then the least and the largest ratio.
        """
        check_update(
            samples,
            with_reference=self._loss.kl_weight != 0,
            vocabulary=len(head_of(self.model).weight_VD),
            temperature=self._temperature,
        )
        self.forget()
        total = _counted_tokens(samples)
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
        parts_P7 = torch.stack(sums)
        # Ratios are divided last: a sum of ones is exact, and their mean is 1.
        ratios = parts_P7[:, 4].sum() / total, parts_P7[:, 5].amin(), parts_P7[:, 6].amax()
        return torch.cat([parts_P7[:, :4].sum(0), torch.stack(ratios)]), len(sums)

    def clip(self) -> torch.Tensor:
        """Scale the gathered gradients down to the largest norm allowed; return the norm they had."""
        most = self._adam.max_norm
        return nn.utils.clip_grad_norm_(self._weights, math.inf if most is None else most)

    def apply(self) -> None:
        """Change the weights by the gathered gradients."""
        self._optimizer.step()

    @torch.no_grad()
    def _check_weights(self) -> None:
        """Raise RunError where a trained weight is not finite: the weights are read once more, nothing is copied.

        What a step will do is known exactly only once it is computed, and a copy to go back to would cost as much as
        the weights in every update.
        """
        # Both ends are NaN where any weight is. 0.04 s for 135 M weights on one core; isfinite of all takes 0.5 s.
        ends = [end.isfinite() for weight in self._weights if weight.numel() for end in weight.aminmax()]
        if not torch.stack(ends).all():
            raise RunError(
                f"the update made weights that are not finite, at a learning rate of {self._adam.learning_rate}. "
                "They are lost: load the last checkpoint, and go on with a lower learning rate"
            )

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
        means = [part_T.detach().sum() / total for part_T in (losses.kl_T, losses.clipped_T, entropies_T)]
        ratios = losses.ratio_T.sum(), losses.ratio_T.amin(), losses.ratio_T.amax()
        sums = torch.stack([loss.detach(), *means, *ratios])
        before, self._half_added = self._half_added, True
        loss.backward()  # type: ignore[no-untyped-call]
        self._half_added = before  # Still true while finished pieces are being brought back.
        return sums

    def _saved_elsewhere(self) -> AbstractContextManager[object]:
        if self._savings.host_activations and self._device.type != "cpu":
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        return nullcontext()


def _counted_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.counted_tokens for sample in samples)


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
