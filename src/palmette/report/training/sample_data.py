"""The samples of a training run that are put on its page: all of them, or those of every second, fourth... update."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from palmette.events import ShownSample, ShownTree


class KeptSamples:
    """Samples by update, in at most so many bytes of JSON.

    While they take more, every second update that has some is dropped, the first and the last update excepted. `every`
    tells of which updates samples are left: 1 for all of them, 2 for every second one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[int, tuple[list[dict[str, Any]], int]] = {}
        self.every = 1

    def add(self, update: int, samples: Sequence[ShownSample], trees: Sequence[ShownTree] = ()) -> None:
        """Add the samples of an update with their trees; they replace those that were added for it before."""
        if not samples:
            self._kept.pop(update, None)
            return
        grown = {tree.question: _tree(tree) for tree in trees}
        questions = [
            {**_question(list(group)), "tree": grown.get(name)}
            for name, group in groupby(samples, key=lambda sample: sample.question)
        ]
        self._kept[update] = questions, len(json.dumps(questions))
        while self._bytes() > self._most_bytes and len(self._kept) > 2:
            kept = len(self._kept)
            self._drop()
            if len(self._kept) == kept:
                self.every *= 2

    def entries(self) -> list[dict[str, Any]]:
        """Return the samples of each update that has some, in order, as JSON values."""
        self._drop()
        return [{"update": update, "questions": self._kept[update][0]} for update in sorted(self._kept)]

    def _bytes(self) -> int:
        return sum(size for _, size in self._kept.values())

    def _drop(self) -> None:
        first, last = min(self._kept, default=0), max(self._kept, default=0)
        for update in list(self._kept):
            if update % self.every and update not in (first, last):
                del self._kept[update]


def _tree(tree: ShownTree) -> dict[str, Any] | None:
    """Return a tree with its branches in the order in which they are read: each above what grew from it.

    `level` counts the branchings above. None for a tree in which a branch stands before its parent: no run writes one.
    """
    if any(step.parent > place for place, step in enumerate(tree.steps)):
        return None
    below: list[list[int]] = [[] for _ in range(len(tree.steps) + 1)]
    for place, step in enumerate(tree.steps, start=1):
        below[step.parent].append(place)
    steps: list[dict[str, Any]] = []
    waiting = [(place, 0) for place in reversed(below[0])]
    while waiting:
        place, level = waiting.pop()
        step = tree.steps[place - 1]
        steps.append({**asdict(step), "place": place, "level": level})
        waiting += [(child, level + 1) for child in reversed(below[place])]
    return {"steps": steps, "left_out": tree.left_out}


def _question(samples: Sequence[ShownSample]) -> dict[str, Any]:
    return {
        "id": samples[0].question,
        "prompt": samples[0].prompt,
        "responses": [
            {
                "text": sample.text,
                "reward": sample.reward,
                "advantage": sample.advantage,
                "cut": sample.is_cut,
                "parts": sample.parts,
                "logged": sample.logged,
            }
            for sample in samples
        ],
    }
