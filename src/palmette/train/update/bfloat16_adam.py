"""AdamW's moments in bfloat16, rounded at random so that small changes are kept on average.

The second moment changes by a thousandth of itself in a step, bfloat16 has steps of 4 to 8 thousandths: rounded to the
nearest number it would stand still. A bfloat16 weight is rounded in the same way, and needs no float32 copy.

Shapes: B numbers of a block of a weight.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import hashlib
from typing import NamedTuple

import torch
from torch import nn
from torch.optim.adamw import adamw

from palmette.train.limits import BLOCK_NUMBERS


class Rates(NamedTuple):
    """What a step of AdamW is made with."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


class Bfloat16Adam:
    """AdamW for one weight after the other, block by block. State is on `device`, by default that of each weight.

    Random numbers are those of a generator of its own, made for each step and each weight from `seed`: the same steps
    give the same weights, whatever else draws random numbers.
    """

    def __init__(self, weights: list[nn.Parameter], *, seed: int, device: torch.device | None = None) -> None:
        self.weights = weights
        self.steps = [torch.zeros((), dtype=torch.float32) for _ in weights]
        self.averages = [_zeros(weight, device) for weight in weights]
        self.squares = [_zeros(weight, device) for weight in weights]
        self._seed = seed
        largest = min(BLOCK_NUMBERS, max((weight.numel() for weight in weights), default=0))
        places = {average.device for average in self.averages}
        self._buffers_of = {place: torch.empty(4, largest, dtype=torch.float32, device=place) for place in places}
        self._noise_of = {place: torch.empty(largest, dtype=torch.int32, device=place) for place in places}

    @torch.no_grad()
    def step(self, rates: Rates) -> None:
        """Change every weight that has a gradient, and drop its gradient if the weight is narrow."""
        for number, weight in enumerate(self.weights):
            if weight.grad is not None:
                self._step(number, weight, weight.grad, rates)
                if weight.dtype == torch.bfloat16:
                    weight.grad = None

    def _step(self, number: int, weight: nn.Parameter, gradient: torch.Tensor, rates: Rates) -> None:
        before, place = self.steps[number], self.averages[number].device
        generator = torch.Generator(place)
        generator.manual_seed(mixed_seed(self._seed, int(before), number))
        # Not contiguous are weights and gradients of some layouts: copied whole then, and the weight copied back.
        flat, flat_gradient = weight.detach().reshape(-1), gradient.reshape(-1)
        average, square = self.averages[number].view(-1), self.squares[number].view(-1)
        for start in range(0, weight.numel(), BLOCK_NUMBERS):
            stop = min(start + BLOCK_NUMBERS, weight.numel())
            values_B, grad_B, average_B, square_B = self._buffers_of[place][:, : stop - start]
            values_B.copy_(flat[start:stop])
            grad_B.copy_(flat_gradient[start:stop])
            average_B.copy_(average[start:stop])
            square_B.copy_(square[start:stop])
            adamw(
                [values_B],
                [grad_B],
                [average_B],
                [square_B],
                [],
                [before.to(place, copy=True)],
                fused=True,
                amsgrad=False,
                beta1=rates.betas[0],
                beta2=rates.betas[1],
                lr=rates.learning_rate,
                weight_decay=rates.weight_decay,
                eps=rates.eps,
                maximize=False,
            )
            noise_B = self._noise_of[place][: stop - start]
            for source_B, target in ((average_B, average), (square_B, square), (values_B, flat)):
                if target.dtype == torch.bfloat16:
                    round_at_random(source_B, noise_B.random_(0, 2**16, generator=generator))
                target[start:stop].copy_(source_B)
        if flat.data_ptr() != weight.data_ptr():
            weight.copy_(flat.view_as(weight))
        before += 1


def round_at_random(values_B: torch.Tensor, noise_B: torch.Tensor) -> None:
    """Round finite float32 numbers in place to bfloat16 numbers, up as often as they are close to the one above.

    `noise_B` are whole numbers from 0 to 65,535: added to the 16 bits that bfloat16 lacks, they carry over into the
    rest with that probability.
    """
    values_B.view(torch.int32).add_(noise_B).bitwise_and_(-(2**16))


def mixed_seed(*parts: int) -> int:
    """Return a seed that depends on all parts, and for which parts that differ in one bit have nothing in common."""
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # Generators take 63 bits.


def _zeros(weight: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    return torch.zeros(weight.shape, dtype=torch.bfloat16, device=device or weight.device)
