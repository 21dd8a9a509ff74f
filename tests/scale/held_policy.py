"""A policy without a model that waits in the middle of a search, in a worker, for as long as a file is there."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from palmette.backends.backend import Expansion, Step
from tests.fake_policy import InProcess

FOLDER = "PALMETTE_HELD_POLICY"
"""The environment variable with the folder that test and policy share."""
HOLD = "hold"
"""The file that makes questions wait, but for those whose ids it names and what is expanded along with them.

With `calls N` in it, everything waits from a process's call N + 1 on.
"""


class HeldPolicy(InProcess):
    """Tells its process id when it begins to wait: a file of that name appears in the folder."""

    calls = 0

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        folder = Path(os.environ[FOLDER])
        self.calls += 1
        while self._is_held(folder / HOLD, expansions):
            (folder / str(os.getpid())).touch()
            time.sleep(0.02)
        return super().expand(expansions)

    def _is_held(self, hold: Path, expansions: Sequence[Expansion]) -> bool:
        try:
            told = hold.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return False
        if told[:1] == ["calls"]:
            return self.calls > int(told[1])
        return all(expansion.question not in told for expansion in expansions)
