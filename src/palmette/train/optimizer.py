"""AdamW, with its optimizer state on the model's device or in host memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
        if not 0 < self.eps < math.inf:  # A gradient of 0, as of an unused token, gives a step of 0 / (0 + eps).
            raise ConfigError(f"eps is {self.eps}: give a number above 0, 1e-8 say")


class Optimizer(Protocol):
    """Changes weights by their gradients."""

    def step(self) -> None:
        """Change every weight that has a gradient."""


def adamw(weights: Iterable[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    """Return torch's fused AdamW, whose step makes no copies of weights or gradients.

    Optimizer state is allocated here, not in the first step: if memory is too small for it, no weight has changed yet.
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
    """AdamW that computes its step in host memory, where it keeps its state and a float32 copy of the weights.

    A step copies gradients to the host and the changed weights back to the device.
    """

    def __init__(self, weights: Sequence[nn.Parameter], settings: AdamSettings) -> None:
        self._weights = list(weights)
        self._masters = [
            nn.Parameter(weight.detach().to("cpu", _at_least_float32(weight.dtype), copy=True)) for weight in weights
        ]
        self._optimizers = [adamw([master], settings) for master in self._masters]

    @torch.no_grad()
    def step(self) -> None:
        """Change every weight that has a gradient, and drop the gradient.

        All gradients are copied before the first weight is changed: if a copy runs out of memory, none has changed.
        """
        triples = list(zip(self._weights, self._masters, self._optimizers, strict=True))
        try:
            for weight, master, _ in triples:
                if weight.grad is not None:
                    master.grad = weight.grad.to("cpu", master.dtype)
                    weight.grad = None
            for weight, master, optimizer in triples:
                if master.grad is not None:
                    optimizer.step()
                    weight.copy_(master)
        finally:
            for master in self._masters:
                master.grad = None


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
