"""AdamW with float32 masters of narrow weights; its state is on the model's device or in host memory."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from palmette.errors import ConfigError


@dataclass(frozen=True)
class AdamSettings:
    """Settings of AdamW. Gradients are clipped to a norm of `max_norm` before its step, None for no clipping.

    A step moves a weight by about `learning_rate`, whatever its gradient: values above 1 raise ConfigError.
    """

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(f"learning_rate is {self.learning_rate}: give a number above 0 and up to 1, 1e-6 say")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas are {self.betas}: give two numbers from 0 to below 1, (0.9, 0.999) say")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}: give 0 or more")
        if self.max_norm is not None and not self.max_norm > 0:  # A norm below 0 would turn every step around.
            raise ConfigError(f"max_norm is {self.max_norm}: give a number above 0, or None for no clipping")
        if not 0 < self.eps < math.inf:  # A gradient of 0, as of an unused token, gives a step of 0 / (0 + eps).
            raise ConfigError(f"eps is {self.eps}: give a number above 0, 1e-8 say")


class AdamW:
    """AdamW in float32 or wider: weights of a narrower dtype have a float32 master each, and are rounded from it.

    Without masters a step of 1e-6 is lost: between 0.5 and 1 bfloat16 has steps of 0.004. With `device`, masters and
    optimizer state are there, and gradients are copied to it. The results are the same with and without. All memory is
    allocated here, none in a step: if it is too small, no weight has changed yet.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], settings: AdamSettings, *, device: torch.device | None = None
    ) -> None:
        own = [weight for weight in weights if _is_wide(weight) and device in (None, weight.device)]
        self._own = _fused(own, settings) if own else None
        rest = [weight for weight in weights if not any(weight is other for other in own)]
        self._masters: list[tuple[nn.Parameter, nn.Parameter, torch.optim.Optimizer]] = []
        self._known: dict[nn.Parameter, tuple[int, int]] = {}
        """Storage and version of each weight as its master last left it."""
        for weight in rest:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            master = nn.Parameter(weight.detach().to(device or weight.device, dtype, copy=True))
            self._masters.append((weight, master, _fused([master], settings)))
            self._known[weight] = _identity(weight)
        largest = max((master for _, master, _ in self._masters), key=lambda master: master.numel(), default=None)
        self._gradient = None if largest is None else torch.empty_like(largest).flatten()

    @torch.no_grad()
    def step(self) -> None:
        """Change every weight that has a gradient. Gradients of weights with a master are dropped.

        A weight that was changed since, by a checkpoint that was loaded, is its master's new value.
        """
        if self._own is not None:
            self._own.step()
        for weight, master, optimizer in self._masters:
            if weight.grad is not None:
                assert self._gradient is not None
                if _identity(weight) != self._known[weight]:
                    master.copy_(weight)
                master.grad = self._gradient[: weight.numel()].view_as(weight).copy_(weight.grad)
                weight.grad = None
                optimizer.step()
                master.grad = None
                weight.copy_(master)
                self._known[weight] = _identity(weight)


def _identity(weight: torch.Tensor) -> tuple[int, int]:
    return weight.untyped_storage()._cdata, weight._version  # Not data_ptr, which fake tensors do not have.


def _is_wide(weight: torch.Tensor) -> bool:
    return torch.promote_types(weight.dtype, torch.float32) == weight.dtype


def _fused(weights: list[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    """Return torch's fused AdamW, whose step makes no copies of weights or gradients, with its state allocated."""
    optimizer = torch.optim.AdamW(
        weights,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    for weight in weights:
        optimizer.state[weight] = {
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
            "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
        }
    return optimizer
