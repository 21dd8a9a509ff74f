"""What sending weights is made of: a label that tells what comes, and a ticket with which each receiver gets it."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import json
from typing import Any, Protocol

from palmette.scale.learning.weight_parcel import Parcel


class Sender(Protocol):
    """Gets one block of bytes to any number of receivers, as often as it is asked to."""

    def load(self, parcel: Parcel) -> None:
        """Take the weights that are sent from now on, in the place of those before."""

    def tickets(self, count: int) -> list[Any]:
        """Return what so many receivers have to be called with, one for each. `deliver` follows when they all are."""

    def deliver(self) -> str:
        """Do the sender's own part of what the last tickets are for; return why it failed, an empty text otherwise.

        Receivers notice by themselves that nothing comes: they answer so, and are sent it again.
        """


def label_text(parcel: Parcel) -> str:
    """Return what is known of a parcel without its content, as JSON."""
    return json.dumps([parcel.version, parcel.checksum, parcel.layout, int(parcel.content.nbytes)])


def labeled(label: str, content: Any) -> Parcel:
    """Return the parcel of a label and of the content that came for it."""
    version, checksum, layout, _ = json.loads(label)
    return Parcel(
        version, checksum, tuple((name, dtype, tuple(shape), at) for name, dtype, shape, at in layout), content
    )


def size_of(label: str) -> int:
    """Return how many bytes a label announces."""
    return int(json.loads(label)[3])
