"""How much of a device a phase may hold: 95% for inference, 90% for training."""

from typing import Literal

PhaseKind = Literal["inference", "training"]
INFERENCE_SHARE = 0.95
TRAINING_SHARE = 0.90
"""Training keeps more back: backward passes allocate in sizes that repeat less, so that more of a heap lies in gaps."""


def share_of(
    phase: PhaseKind, inference_share: float = INFERENCE_SHARE, training_share: float = TRAINING_SHARE
) -> float:
    """Return the share of a device that a phase may hold."""
    return inference_share if phase == "inference" else training_share


def limit_bytes(
    total_bytes: int,
    phase: PhaseKind,
    *,
    inference_share: float = INFERENCE_SHARE,
    training_share: float = TRAINING_SHARE,
) -> int:
    """Return the bytes of a device, or of a declared budget, that a phase may hold, rounded down."""
    return int(total_bytes * share_of(phase, inference_share, training_share))
