"""The learning rate of each update: a warm-up, then constant, linear or cosine decay."""

import math
from typing import Literal, get_args

from palmette.errors import ConfigError

Shape = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, *, peak: float, steps: int, warmup: int = 0, shape: Shape = "constant", least: float = 0.0
) -> float:
    """Return the learning rate of update `step`, counted from 0, of `steps` updates in all.

    During the `warmup` updates it grows in equal parts to `peak`, which the last of them has. After them it stays there
    (`constant`), or falls to `least` times the peak at the last update: along a line, or along half a cosine. Updates
    beyond the last have its rate. Raises ConfigError for a shape that does not exist or numbers that make no schedule.
    """
    if shape not in get_args(Shape):
        raise ConfigError(f"the schedule is {shape!r}: give one of {', '.join(get_args(Shape))}")
    if step < 0 or steps < 1 or not 0 <= warmup <= steps:
        raise ConfigError(f"{warmup} updates of warm-up in {steps} updates are no schedule: give 0 to {max(0, steps)}")
    if not 0 <= least <= 1:
        raise ConfigError(f"a schedule cannot end at {least} times its peak: give a number from 0 to 1")
    if step < warmup:
        return peak * (step + 1) / warmup
    if shape == "constant":
        return peak
    done = min(1.0, (step + 1 - warmup) / max(1, steps - warmup))
    left = 1 - done if shape == "linear" else (1 + math.cos(math.pi * done)) / 2
    return peak * (least + (1 - least) * left)
