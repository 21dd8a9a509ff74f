"""What is said of gradients and weights that are not finite, by a learner of one process and by one of ranks."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Iterable

import torch

from palmette.errors import RunError


def check_gradient(norm: float) -> None:
    """Raise RunError unless the norm of an update's gradient is finite."""
    if not math.isfinite(norm):
        raise RunError("the update's gradient is not finite, so no weight was changed: lower the learning rate")


@torch.no_grad()
def are_finite(weights: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return whether all weights are finite, as a tensor. Reads them once, copies nothing."""
    # Smallest and largest are NaN if any weight is. 0.04 s for 135 M weights on one core; isfinite of all: 0.5 s.
    finite = [bound.isfinite() for weight in weights if weight.numel() for bound in weight.aminmax()]
    return torch.stack(finite).all() if finite else torch.tensor(True)


def lost_weights(learning_rate: float) -> RunError:
    """Return the error to raise where an update made weights that are not finite."""
    return RunError(
        f"the update made weights that are not finite, at a learning rate of {learning_rate}. "
        "They are lost: load the last checkpoint, and go on with a lower learning rate"
    )
