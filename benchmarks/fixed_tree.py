"""Workload A: trees of a fixed shape, so that every side generates as many tokens from as many prefixes.

Each question grows 16 steps of 24 tokens from its prompt; then three times every fourth leaf gets 4 steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import reasoning_gym

WIDTH, KEPT, STEP_TOKENS, DEPTH = 16, 4, 24, 4

Path = tuple[int, tuple[int, ...]]
"""A question with all tokens of one of its branches."""


@dataclass(frozen=True)
class Parent:
    """A path to grow from: its tokens, its name (children count from 0 below it), how many children it gets."""

    question: int
    name: tuple[int, ...]
    tokens: tuple[int, ...]
    children: int


class Side(Protocol):
    """One who generates."""

    name: str

    def start(self) -> None:
        """Forget everything."""

    def rest(self) -> None:
        """Take nothing from the others."""

    def grow(self, parents: Sequence[Parent]) -> list[list[tuple[int, ...]]]:
        """Return a step of STEP_TOKENS for each child of each parent. Only these parents' paths are needed on."""


def questions(count: int) -> list[str]:
    """Return word problems of 40 to 150 tokens."""
    return [str(item["question"]) for item in reasoning_gym.create_dataset("gsm_symbolic", size=count, seed=0)]


def grow_trees(side: Side, prompts: Sequence[tuple[int, ...]]) -> tuple[int, list[Path]]:
    """Grow one tree for each prompt on a side that starts anew; return the tokens generated and the last paths."""
    side.start()
    parents = [Parent(number, (), prompt, WIDTH) for number, prompt in enumerate(prompts)]
    generated = 0
    paths: list[Path] = []
    for _ in range(DEPTH):
        grown = side.grow(parents)
        if any(len(step) != STEP_TOKENS for steps in grown for step in steps):
            raise RuntimeError(f"{side.name} wrote steps of other lengths")
        generated += sum(len(steps) for steps in grown) * STEP_TOKENS
        paths = [
            (parent.question, (*parent.tokens, *step))
            for parent, steps in zip(parents, grown, strict=True)
            for step in steps
        ]
        parents = [
            Parent(parent.question, (*parent.name, child), (*parent.tokens, *steps[child]), KEPT)
            for parent, steps in zip(parents, grown, strict=True)
            for child in range(0, len(steps), WIDTH // KEPT)
        ]
    return generated, paths


def replicated_tokens(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return the KV tokens of the last wave where every branch holds its whole path."""
    return sum(WIDTH * (len(prompt) + DEPTH * STEP_TOKENS) for prompt in prompts)


def unique_tokens(paths: Sequence[Path]) -> int:
    """Return the KV tokens of these paths where every common beginning is held once.

    A path's last token is not counted: it is drawn, but nothing has been computed from it.
    """
    return len({hash((question, path[:end])) for question, path in paths for end in range(1, len(path))})
