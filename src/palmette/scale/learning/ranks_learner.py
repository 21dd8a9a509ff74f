"""The learner as the driver has it: updates are made by ranks, their weights are fetched for who generates."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palmette.memory.guard import RunPieces
from palmette.scale.learning.rank import BuildLearner
from palmette.scale.learning.ranks import Ranks, connect
from palmette.scale.learning.weight_parcel import unpack
from palmette.train.checkpoints.shard_files import FOLDER
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult
from palmette.units import count_of


class RanksLearner:
    """Has the interface of `Learner`, with ranks to make its updates.

    `weights` are those of this process that are trained, by name; the ranks' own are fetched into them. `steps` counts
    the optimizer steps of this learner: that is the version of its weights. After an error it is of no more use.
    """

    def __init__(
        self, ranks: Ranks, build: BuildLearner, weights: Mapping[str, torch.Tensor], notes: Sequence[str] = ()
    ) -> None:
        self._ranks = ranks
        self._weights = weights
        self.notes = list(notes)
        self.steps = 0
        self._fetched: int | None = None
        """The version of the weights in this process, None before any were fetched."""
        connect(ranks)
        self.places: list[dict[str, Any]] = ranks.call("build", build)
        """Of each rank its `pid`, its `host` and its `held_bytes`."""
        where = ", ".join(f"{rank} process {place['pid']} on {place['host']}" for rank, place in enumerate(self.places))
        self.notes.append(f"{count_of(ranks.count, 'rank')} learn{'s' * (ranks.count == 1)}: {where}")

    def update(
        self,
        samples: Sequence[Sample],
        *,
        micro_batch_tokens: int,
        run_pieces: RunPieces | None = None,
        on_policy: bool = False,
        learning_rate: float | None = None,
    ) -> UpdateResult:
        """Change the ranks' weights by one optimizer step; `fetch` brings them here.

        `run_pieces` is not used: a rank whose micro-batch does not fit ends the update with a BudgetError. Raises as
        `Learner.update` does, and RankLostError.
        """
        results = self._ranks.call("update", list(samples), micro_batch_tokens, on_policy, learning_rate)
        self.steps += 1
        found: UpdateResult = results[0]
        return found

    def fetch(self) -> None:
        """Write the ranks' weights into those of this process, if they are not the same already.

        Raises RankLostError, and RunError if what came is not what was sent.
        """
        if self._fetched == self.steps:
            return
        parcel, *_ = self._ranks.call("weights", self.steps)
        unpack(parcel, self._weights, self.steps)
        self._fetched = self.steps

    def save(self, folder: Path) -> None:
        """Let the ranks write what next updates depend on beside the weights into the folder of a checkpoint."""
        self._ranks.call("save", str(folder / FOLDER))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return nothing: ranks write their state themselves, by `save`."""
        return {}

    def memory(self) -> list[dict[str, int]]:
        """Return what each rank holds, in bytes, and the most that its process has held."""
        found: list[dict[str, int]] = self._ranks.call("memory")
        return found

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()
