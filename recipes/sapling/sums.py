"""Sums to learn to calculate from: those of the train split of `words`, many to a row."""

import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from palmette.tasks.words.generate import problems
from palmette.tasks.words.problem import SIGNS
from palmette.tasks.words.solution import random_order, step_of

GRADES = (2, 3, 4)
IN_A_ROW = 12


def sums(seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `palmette sft` without end: what the solutions of train problems calculate, in random order."""
    generator = random.Random(seed)
    sources = cycle([problems(grade, "train", seed) for grade in GRADES])
    waiting: list[str] = []
    for source in sources:
        problem = next(source)
        for quantity in random_order(problem, generator):
            step = step_of(problem, quantity, problem.values)
            waiting.append(f"{SIGNS[step.kind].join(map(str, step.left))}={step.result}")
        if len(waiting) >= 4 * IN_A_ROW:
            generator.shuffle(waiting)
            chosen, waiting = waiting[:IN_A_ROW], waiting[IN_A_ROW:]
            # The prompt has their left sides: these are then copied, and only results are learned.
            asked = " ".join(line.partition("=")[0] for line in chosen)
            yield {"prompt": asked, "completion": "\n".join(chosen)}
