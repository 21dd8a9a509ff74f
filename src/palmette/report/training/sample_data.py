"""The samples of a training run that are put on its page: all of them, or those of every second, fourth... update."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from palmette.events import ShownSample


class KeptSamples:
    """Samples by update, in at most so many bytes of JSON.

    While they take more, every second update that has some is dropped, the first and the last update excepted. `every`
    tells of which updates samples are left: 1 for all of them, 2 for every second one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[int, tuple[list[dict[str, Any]], int]] = {}
        self.every = 1

    def add(self, update: int, samples: Sequence[ShownSample]) -> None:
        """Add the samples of an update; they replace those that were added for it before."""
        if not samples:
            self._kept.pop(update, None)
            return
        questions = [_question(list(group)) for _, group in groupby(samples, key=lambda sample: sample.question)]
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
            }
            for sample in samples
        ],
    }
