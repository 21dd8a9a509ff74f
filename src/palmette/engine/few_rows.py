"""Products of a few rows with large weights, in the order in which the CPU's library reads the weights fastest."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

MOST_ROWS = 8
"""Up to so many rows W @ x.T is computed in place of x @ W.T; for a single row both are the same.

Measured with the weights of SmolLM2-135M in float32 on a busy machine with two cores (AVX2), milliseconds for all
products of a tick, x @ W.T and W @ x.T, the fastest of 8 turns:
one thread: 2 rows 77, 59; 3 rows 92, 66; 4 rows 75, 51; 5 rows 88, 66; 6 rows 90, 82; 8 rows 88, 87; 12 rows 105, 161.
two threads: 2 rows 87, 56; 3 rows 102, 76; 4 rows 84, 60; 6 rows 136, 93; 8 rows 153, 95; 12 rows 153, 169.
Whole ticks on one thread, CPU time: 2 tokens 125, 104; 3 tokens 141, 113; 4 tokens 126, 98; 6 tokens 132, 139; 8 tokens
143, 140; with 16 and more no difference beyond noise.
"""


def plain_linears(model: torch.nn.Module) -> list[torch.nn.Linear]:
    """Return the model's linear layers that run torch's own code on plain weights."""
    return [
        module
        for module in model.modules()
        if type(module) is torch.nn.Linear
        and type(module.weight) is torch.nn.Parameter
        and "forward" not in module.__dict__
    ]


@contextmanager
def fast_for_few_rows(linears: Sequence[torch.nn.Linear]) -> Iterator[None]:
    """Let these layers compute products of up to `MOST_ROWS` rows in the faster order inside the block.

    Results differ from those of the layers' own code by rounding. Other dtypes and devices are left to that code.
    """
    for linear in linears:
        own: Callable[[torch.Tensor], torch.Tensor] = partial(_forward, linear)
        linear.__dict__["forward"] = own
    try:
        yield
    finally:
        for linear in linears:
            del linear.__dict__["forward"]


def _forward(linear: torch.nn.Linear, values: torch.Tensor) -> torch.Tensor:
    weight = linear.weight
    rows = values.numel() // max(1, values.shape[-1])
    if not 1 < rows <= MOST_ROWS or values.dtype != torch.float32 or weight.dtype != torch.float32 or weight.is_cuda:
        return torch.nn.functional.linear(values, weight, linear.bias)
    # Contiguous, because a model's code may view the result in another shape.
    product = torch.mm(weight, values.reshape(rows, -1).t()).t().contiguous()
    if linear.bias is not None:
        product += linear.bias
    return product.view(*values.shape[:-1], -1)
