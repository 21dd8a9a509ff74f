"""What is known of each worker while a search goes on, and what all of them did together."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from palmette.events import ServerUse, Session, WorkerEnded
from palmette.run.search import WorkerProgress
from palmette.scale.crew import Member


@dataclass
class WorkerTally:
    """One worker in one life of its process."""

    member: Member
    state: str = "placing"
    clock_offset: float = 0.0
    """What its clock shows less what the driver's shows, in seconds."""
    questions: int = 0
    tokens: int = 0
    held_bytes: int = 0
    peak_bytes: int = 0
    loaded: float | None = None
    """When its models were loaded, by the driver's monotonic clock."""
    progressed: float = field(default_factory=time.monotonic)
    """When it last told of a token or an event."""

    def hold(self, held_bytes: int) -> None:
        """Note what it holds."""
        self.held_bytes = held_bytes
        self.peak_bytes = max(self.peak_bytes, held_bytes)

    def progress(self, in_flight: int) -> WorkerProgress:
        """Return how far it is."""
        member = self.member
        return WorkerProgress(
            member.name, member.node, self.state, self.questions, in_flight, self.tokens, self.held_bytes
        )

    def ended(self, lost: str = "") -> WorkerEnded:
        """Return the event of its end."""
        seconds = 0.0 if self.loaded is None else round(time.monotonic() - self.loaded, 3)
        told = (self.member.name, self.member.node, self.questions, self.tokens, seconds, self.peak_bytes)
        return WorkerEnded(*told, lost)


class OwnWork:
    """Counts the processor seconds that the driver's thread takes for itself.

    Waiting is not among them, nor what others do in a pause: they are what one driver needs for its questions, whatever
    else the machine does.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._since = time.thread_time()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return max(0.0, time.thread_time() - self._since)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing of the block."""
        paused = time.thread_time()
        yield
        self._since += time.thread_time() - paused


def joined_session(
    seconds: float, driver_seconds: float, questions: int, kv_bytes_per_token: int, told: Sequence[Session]
) -> Session:
    """Return the session of a driver from those that its workers told; one that was lost has told none.

    Calls and KV tokens are sums. Workers that share a server each count what it did for all of them meanwhile: the
    largest count is the nearest.
    """
    servers: dict[str, ServerUse] = {}
    for use in (use for session in told for use in session.servers):
        known = servers.get(use.address)
        if known is None or (use.prefix_tokens or 0) > (known.prefix_tokens or 0):
            servers[use.address] = use
    return Session(
        seconds=round(seconds, 3),
        policy_calls=sum(session.policy_calls for session in told),
        reward_calls=sum(session.reward_calls for session in told),
        questions=questions,
        kv_bytes_per_token=kv_bytes_per_token,
        peak_kv_tokens=sum(session.peak_kv_tokens for session in told),
        kv_as_held=True,
        servers=tuple(servers.values()),
        driver_seconds=round(driver_seconds, 4),
    )
