"""AdamW on the model's device, or with its state in host memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from palmette.errors import ConfigError


@dataclass(frozen=True)
class AdamSettings:
    """AdamW's numbers; gradients are clipped to `max_norm` before it, None leaves them.

    An update moves a weight by about `learning_rate`, whatever its gradient, so that more than 1 is refused.
    """

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(f"learning_rate is {self.learning_rate}: give a number above 0 and up to 1, 1e-6 say")
        if not 0 < self.eps < math.inf:  # Where a gradient is 0, as an unused token's is, 0 / (0 + eps) is taken.
            raise ConfigError(f"eps is {self.eps}: give a number above 0, 1e-8 say")


class Optimizer(Protocol):
    """Changes weights by their gradients."""

    def step(self) -> None:
        """Change every weight that has a gradient."""


def adamw(weights: Iterable[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    """Return torch's AdamW, fused: without copies of weights or gradients while it steps.

    Its state is made here, not in the first step: where there is no room for it, that shows before anything is changed.
    """
    optimizer = torch.optim.AdamW(
        weights,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight] = {
                "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
            }
    return optimizer


class HostAdamW:
    """AdamW whose state and float32 copy of the weights stay in host memory, where it steps too.

    Gradients travel to the host and weights back. On the device nothing is held.
    """

    def __init__(self, weights: Sequence[nn.Parameter], settings: AdamSettings) -> None:
        self._weights = list(weights)
        self._masters = [
            nn.Parameter(weight.detach().to("cpu", _at_least_float32(weight.dtype), copy=True)) for weight in weights
        ]
        self._steps = [adamw([master], settings) for master in self._masters]

    @torch.no_grad()
    def step(self) -> None:
        """Change every weight that has a gradient; its gradient is gone afterwards.

        All gradients are moved before the first weight is changed: what can lack memory comes first.
        """
        steps = list(zip(self._weights, self._masters, self._steps, strict=True))
        try:
            for weight, master, _ in steps:
                if weight.grad is not None:
                    master.grad = weight.grad.to("cpu", master.dtype)
                    weight.grad = None
            for weight, master, stepper in steps:
                if master.grad is not None:
                    stepper.step()
                    weight.copy_(master)
        finally:
            for master in self._masters:
                master.grad = None


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
