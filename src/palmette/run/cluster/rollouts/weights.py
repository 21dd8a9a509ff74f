"""The weights that workers have to have: numbered, with a checksum, sent to who has others."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from palmette.errors import RunError
from palmette.run.cluster.tally import WorkerTally
from palmette.scale.crew import Crew
from palmette.scale.learning.weight_parcel import pack
from palmette.scale.transport.sender import Sender, label_text
from palmette.units import count_of, one_line


@dataclass
class Hand(WorkerTally):
    """One worker in one life of its process. `version` is that of the weights that it has, None before it has any."""

    version: int | None = None


class WorkerWeights:
    """Counts versions from 1, in the order in which they are published; 0 before the first."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._key: object = None
        self._label = ""
        self._checksum = 0
        self.version = 0

    def publish(self, key: object, weights: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Have these sent from now on; the same key as before tells that they are the same."""
        if key == self._key:
            return
        parcel = pack({name: weight.detach().cpu() for name, weight in weights().items()}, self.version + 1)
        self._sender.load(parcel)
        self.version, self._checksum, self._label, self._key = parcel.version, parcel.checksum, label_text(parcel), key

    def send(self, crew: Crew, hands: Sequence[Hand], seconds: float) -> str:
        """Call workers with the weights; return why they were not delivered, an empty text if they were."""
        for hand, ticket in zip(hands, self._sender.tickets(len(hands)), strict=True):
            crew.call(hand.member, seconds, "take_weights", self._label, ticket)
        failed = self._sender.deliver()
        return f"weights were not delivered to {count_of(len(hands), 'worker')}: {one_line(failed, 200)}" * bool(failed)

    def confirm(self, hand: Hand, values: Mapping[str, Any]) -> str:
        """Note which weights a worker says it has; return why it has none, an empty text if it has.

        Raises RunError for the present version with another checksum. A worker with an older version is sent the
        present one before it is asked anything.
        """
        hand.version = None
        if "missing" in values:
            return one_line(str(values["missing"]), 200)
        if values["version"] == self.version and values["checksum"] != self._checksum:
            raise RunError(f"{hand.member} has other weights {self.version} than were sent: their checksum is wrong")
        hand.version = int(values["version"])
        return ""
