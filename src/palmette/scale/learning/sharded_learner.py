"""The learner of one rank: its share of an update's samples, its shard of weights and optimizer state.

Every rank divides its sums by the counted response tokens of the whole update, and gradients are summed over ranks: how
many ranks there are changes nothing but rounding.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from palmette.errors import BackendError
from palmette.scale.learning.shards import PolicyScores, shard, trained_weights
from palmette.scale.learning.shares import Pass, passes_of
from palmette.train.samples import Sample, check_update
from palmette.train.trainable import check_trainable
from palmette.train.update.batch import given_by, make_rows
from palmette.train.update.finite import are_finite, check_gradient, lost_weights
from palmette.train.update.learner import OPTIMIZER, VALUE_HEAD, Savings
from palmette.train.update.loss import LossSettings, PolicyLoss, token_losses
from palmette.train.update.optimizer import AdamSettings, AdamW
from palmette.train.update.update_result import UpdateResult, means_of, pass_sums, result_of, weighed


class ShardedLearner:
    """Trains those weights of a policy that have `requires_grad`, together with the other ranks of a mesh.

    Takes what `train.update.learner.Learner` takes, but for shared prefixes: samples are rows of their own. All ranks
    have to be given the same model, settings and samples, and to call the same methods in the same order.
    """

    def __init__(
        self,
        model: Any,
        mesh: DeviceMesh,
        *,
        loss: LossSettings | None = None,
        policy_loss: PolicyLoss | None = None,
        adam: AdamSettings | None = None,
        savings: Savings | None = None,
        temperature: float = 1.0,
        chunk_tokens: int | None = None,
        value_head: nn.Module | None = None,
    ) -> None:
        self._loss = loss or LossSettings()
        self._policy_loss = policy_loss
        self._adam = adam or AdamSettings()
        self._temperature = temperature
        if not any(weight.requires_grad for weight in model.parameters()):
            raise BackendError("no weight of the model has requires_grad: call train_all or train_lora first")
        check_trainable(model)
        self._vocabulary = int(model.get_output_embeddings().weight.shape[0])
        savings = savings or Savings()
        if savings.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()  # Gradient checkpointing needs train mode. Noise, which that would switch on, is refused.
        self._mesh = mesh
        self._scores = PolicyScores(model, value_head, temperature=temperature, chunk_tokens=chunk_tokens)
        shard(self._scores, mesh)
        self._weights = trained_weights(self._scores)
        with torch.no_grad():
            self._locals = [nn.Parameter(weight.to_local()) for weight in self._weights.values()]
        self._device = self._locals[0].device
        host = torch.device("cpu") if savings.host_optimizer else None
        self.optimizer = AdamW(self._locals, self._adam, device=host, names=list(self._weights))
        self.before_step: Callable[[], object] = lambda: None
        """Called when weights, gradients and optimizer state are all there."""

    def update(
        self,
        samples: Sequence[Sample],
        *,
        micro_batch_tokens: int,
        on_policy: bool = False,
        learning_rate: float | None = None,
    ) -> UpdateResult:
        """Change the weights of all ranks by one optimizer step on all samples; every rank returns the same result.

        A rank holds at most `micro_batch_tokens` tokens at a time, padding included. Raises as `Learner.update` does,
        on all ranks alike.
        """
        check_update(
            samples,
            with_reference=self._loss.kl_weight != 0,
            vocabulary=self._vocabulary,
            temperature=self._temperature,
        )
        ranks = self._mesh.size()
        passes = passes_of(samples, ranks=ranks, micro_batch_tokens=micro_batch_tokens)
        total = sum(sample.counted_tokens for sample in samples)
        self._drop_gradients()
        try:
            parts = [self._backward(each, total, on_policy) for each in passes[self._mesh.get_rank()]]
            self._take_gradients()
            norm = self._clip()
            check_gradient(norm)
            self.before_step()
            self.optimizer.step(learning_rate)
            self._check_weights(self._adam.learning_rate if learning_rate is None else learning_rate)
        finally:
            self._drop_gradients()
        pieces = sum(not each.is_idle for own in passes for each in own)
        statistics = means_of([self._over_ranks(parts)], total).tolist()
        return result_of(statistics, gradient_norm=norm, response_tokens=total, pieces=pieces)

    def shards(self) -> dict[str, torch.Tensor]:
        """Return what the next updates depend on beside the weights, by name: DTensors and numbers that all share."""
        held: dict[str, torch.Tensor] = {}
        for name, tensor in self.optimizer.state_dict().items():
            weight = self._weights[name.rpartition(".")[0]]
            if not name.endswith(".step"):
                tensor = DTensor.from_local(
                    tensor,
                    self._mesh,
                    weight.placements,
                    run_check=False,
                    shape=weight.shape,
                    stride=weight.stride(),
                )
            held[f"{OPTIMIZER}{name}"] = tensor
        if self._scores.value_head is not None:
            held |= {name: weight.detach() for name, weight in self._weights.items() if name.startswith(VALUE_HEAD)}
        return held

    def gathered(self) -> dict[str, torch.Tensor]:
        """Return every trained weight whole, in host memory, on rank 0, nothing on others. All ranks must call it."""
        whole: dict[str, torch.Tensor] = {}
        for name, weight in self._weights.items():
            with torch.no_grad():
                full = weight.full_tensor()
            if self._mesh.get_rank() == 0:
                whole[name] = full.to("cpu")
        return whole

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes that this rank holds: of weights, of optimizer state, and during an update of gradients."""
        weights = [weight for weight in self._scores.parameters() if isinstance(weight, DTensor)]
        with torch.no_grad():
            return {
                "weights": sum(weight.to_local().nbytes for weight in weights),
                "gradients": sum(local.nbytes for local in self._locals),
                "optimizer": sum(tensor.nbytes for tensor in self.optimizer.state_dict().values()),
            }

    def _backward(self, each: Pass, total: int, on_policy: bool) -> torch.Tensor | None:
        """Run one forward and backward pass; return its statistics, None for an idle one."""
        rows = make_rows(each.samples, self._device)
        logprobs_T, entropies_T, values_T = self._scores(rows)
        given = given_by(each.samples, device=self._device, dtype=logprobs_T.dtype)
        tokens = given.with_outputs(logprobs_T, entropies_T, values_T, on_policy=on_policy)
        losses = token_losses(tokens, self._loss, self._policy_loss)
        loss = weighed(losses, given, total)
        loss.backward()  # type: ignore[no-untyped-call]
        return None if each.is_idle else pass_sums(loss.detach(), losses, tokens, given, total)

    @torch.no_grad()
    def _take_gradients(self) -> None:
        """Give the gradients of this rank's shards to what the optimizer knows of them."""
        for local, weight in zip(self._locals, self._weights.values(), strict=True):
            gradient = weight.grad
            assert gradient is None or isinstance(gradient, DTensor)
            local.grad = None if gradient is None else gradient.to_local()

    @torch.no_grad()
    def _clip(self) -> float:
        """Clip the gradients of all ranks to `max_norm` together; return their norm before that."""
        gradients = [local.grad for local in self._locals if local.grad is not None]
        square = nn.utils.get_total_norm(gradients).double().square().to(self._device)
        dist.all_reduce(square, group=self._mesh.get_group())
        norm = square.sqrt().to(torch.promote_types(self._locals[0].dtype, torch.float32))
        if self._adam.max_norm is not None:
            nn.utils.clip_grads_with_norm_(self._locals, self._adam.max_norm, norm)
        return float(norm)

    def _drop_gradients(self) -> None:
        for local, weight in zip(self._locals, self._weights.values(), strict=True):
            local.grad = weight.grad = None

    @torch.no_grad()
    def _check_weights(self, learning_rate: float) -> None:
        """Raise RunError on all ranks if a trained weight of any rank is not finite."""
        is_sound = are_finite(self._locals).to(self._device, torch.int32)
        dist.all_reduce(is_sound, op=dist.ReduceOp.MIN, group=self._mesh.get_group())
        if not is_sound:
            raise lost_weights(learning_rate)

    def _over_ranks(self, parts: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the statistics of all passes of all ranks: five sums, the smallest and the largest ratio."""
        own = [part.double() for part in parts if part is not None]
        sums_5 = torch.stack([part[:5] for part in own]).sum(0) if own else torch.zeros(5, dtype=torch.float64)
        # One reduction for both bounds: the largest ratio is the smallest of its negative.
        bounds_2 = torch.tensor([math.inf, math.inf], dtype=torch.float64)
        if own:
            bounds_2 = torch.stack([torch.stack([part[5], -part[6]]) for part in own]).amin(0)
        sums_5, bounds_2 = sums_5.to(self._device), bounds_2.to(self._device)
        dist.all_reduce(sums_5, group=self._mesh.get_group())
        dist.all_reduce(bounds_2, op=dist.ReduceOp.MIN, group=self._mesh.get_group())
        return torch.cat([sums_5, bounds_2[:1], -bounds_2[1:]])
