"""A group of ranks as the driver sees it: calls go to all of them, every wait has a deadline that names the missing."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from palmette import __version__
from palmette.errors import BackendError, PalmetteError, RunError
from palmette.units import one_line

OTHERS_SECONDS = 10.0
"""How long to wait for the others after one rank has failed: for the one that died, because of which it failed."""


class RankLostError(RunError):
    """A rank has ended, cannot be reached or did not answer in time. What ranks held is lost, checkpoints are not."""


class Ranks(Protocol):
    """Ranks that wait for calls. After any error they are of no more use and have to be closed."""

    count: int

    def call(self, method: str, *arguments: Any, only: Sequence[int] | None = None) -> list[Any]:
        """Call a method of `Rank` on all ranks, or on some; return what each returned, in order.

        Raises RankLostError for ranks that end or do not answer within their time, and what a rank has raised.
        """

    def close(self) -> None:
        """End all ranks. Safe to call twice."""


def connect(ranks: Ranks) -> None:
    """Let ranks find each other. Raises BackendError for a rank with another version of palmette."""
    for rank, version in enumerate(ranks.call("version")):
        if version != __version__:
            told = one_line(str(version), 80)
            raise BackendError(
                f"{named([rank], ranks.count)} has palmette {told}, this is {__version__}: install the same version"
            )
    (where,) = ranks.call("open_store", only=[0])
    ranks.call("join", *where)


def named(ranks: Collection[int], count: int) -> str:
    """Return which ranks of how many, for messages."""
    numbers = ", ".join(map(str, sorted(ranks)))
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers} of {count}"


def first_failure(
    failed: Mapping[int, PalmetteError], missing: Collection[int], count: int, method: str, seconds: float
) -> PalmetteError:
    """Return the error of a call that some ranks have not answered in time, while others may have failed.

    Ranks that waited in vain for the missing ones have failed by that: then the missing ones are named. An error of a
    rank's own is the cause that the others wait.
    """
    for rank in sorted(failed):
        if not isinstance(failed[rank], RankLostError):
            return failed[rank]
    waited = f", {named(failed, count)} waited in vain" if failed else ""
    return RankLostError(
        f"{named(missing, count)} did not answer '{method}' within {seconds:g} s{waited}. If that was work, set "
        f"scale.answer_seconds higher"
    )
