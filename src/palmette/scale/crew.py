"""Workers as Ray actors: started, called, missed by a deadline, started again. Knows nothing of what they do."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from palmette.errors import BackendError, RunError
from palmette.scale.connect import Ray
from palmette.scale.fit import Demand
from palmette.units import describe_error, format_seconds, one_line

_STORE_FULL = (
    "Ray's object store is full: end what fills it (ray memory shows it), or start Ray with more by "
    "--object-store-memory"
)


@dataclass
class Member:
    """One worker. `name` stays the same when it is started again, `lives` counts how often it was started."""

    name: str
    lives: int = 0
    node: str = ""
    actor: Any = None
    method: str = ""
    """The call that it has not answered yet; empty without one."""
    _answer: Any = field(default=None, repr=False)
    _due: float = field(default=0.0, repr=False)
    _since: float = field(default=0.0, repr=False)

    def __str__(self) -> str:
        return f"worker {self.name} on {self.node}" if self.node else f"worker {self.name}"


@dataclass(frozen=True)
class Answer:
    """What a worker returned from one call."""

    member: Member
    method: str
    text: str


@dataclass(frozen=True)
class Loss:
    """A worker that is gone, or that did not answer in time. `was_late`: its deadline has passed."""

    member: Member
    method: str
    reason: str
    was_late: bool = False


class Crew:
    """The workers of one run. One call at a time for each; a call that is not answered in time counts as a loss.

    `worker` is the class of the actors, which have to be able to import it, `arguments` what one is made with.
    """

    def __init__(self, ray: Ray, worker: type, demand: Demand, arguments: Callable[[Member], tuple[str, ...]]) -> None:
        self._ray = ray
        self._arguments = arguments
        resources = {"num_cpus": demand.cpus, "num_gpus": demand.gpus, "memory": demand.memory_bytes or None}
        self._actor = ray.remote(worker).options(scheduling_strategy="SPREAD", max_restarts=0, **resources)
        self.members: list[Member] = []

    def start(self, member: Member, seconds: float) -> None:
        """Start a worker, for the first time or again; it answers the call `hello` when it has a place."""
        if member not in self.members:
            self.members.append(member)
        member.lives += 1
        member.node = ""
        with self._telling_full_store(member):
            member.actor = self._actor.remote(*self._arguments(member))
        self.call(member, seconds, "hello")

    def call(self, member: Member, seconds: float, method: str, *arguments: Any) -> None:
        """Call a method; its answer has to come within so many seconds. Arguments are texts, or references of Ray's."""
        assert not member.method, f"{member} has not answered {member.method} yet"
        with self._telling_full_store(member):
            member._answer = getattr(member.actor, method).remote(*arguments)
        member.method = method
        member._since = time.monotonic()
        member._due = member._since + seconds

    def collect(self, seconds: float) -> Iterator[Answer | Loss]:
        """Yield the answers and losses of this moment; wait up to so many seconds for the first.

        Raises BackendError for a full object store, RunError for an error in a worker that it did not tell itself.
        """
        called = {member._answer: member for member in self.members if member.method}
        if not called:
            time.sleep(min(seconds, 0.05))
            return
        until = min(member._due for member in called.values()) - time.monotonic()
        ready, rest = self._ray.wait(list(called), num_returns=1, timeout=max(0.0, min(seconds, until)))
        if rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        now = time.monotonic()
        late = [member for answer, member in called.items() if answer not in ready and member._due <= now]
        for answer in ready:
            yield self._answered(called[answer])
        for member in late:
            waited = format_seconds(now - member._since)
            yield self._lost(member, f"it did not answer {member.method} within {waited}", was_late=True)

    def end(self, member: Member) -> None:
        """End a worker's process, if there is one."""
        if member.actor is not None:
            with suppress(Exception):  # It is gone, or the cluster is.
                self._ray.kill(member.actor)
        member.actor, member.method, member._answer = None, "", None

    def _answered(self, member: Member) -> Answer | Loss:
        errors = self._ray.exceptions
        try:
            with self._telling_full_store(member):
                text = self._ray.get(member._answer)
        except errors.RayTaskError as error:
            if "ObjectStoreFull" in str(error) or "OutOfDisk" in str(error):
                raise BackendError(f"{member}: {_STORE_FULL}") from error
            raise RunError(f"{member} failed in {member.method}: {describe_error(error.cause or error)}") from error
        except errors.RayError as error:
            return self._lost(member, cause_of_death(str(error)))
        if not isinstance(text, str):
            raise RunError(f"{member} answered {member.method} with a {type(text).__name__}, not with a text")
        method, member.method, member._answer = member.method, "", None
        return Answer(member, method, text)

    @contextmanager
    def _telling_full_store(self, member: Member) -> Iterator[None]:
        """Raise BackendError where what is sent to a worker, or what it answers, has no place in the store."""
        errors = self._ray.exceptions
        try:
            yield
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise BackendError(f"{member}: {_STORE_FULL}") from error

    def _lost(self, member: Member, reason: str, *, was_late: bool = False) -> Loss:
        loss = Loss(member, member.method, reason, was_late)
        self.end(member)
        return loss


_CAUSES = {
    ("failed to import", "No module named"): (
        "its node cannot import palmette, or what a worker needs: install the same palmette[scale] there"
    ),
    ("running low on memory", "memory pressure"): "Ray ended it because its node ran low on memory",
    ("node has died", "node was terminated", "node is dead"): "its node is gone",
    ("unexpectedly exits", "is unavailable", "Socket closed", "intended exit"): "its process ended",
}
"""What Ray's messages about lost actors contain, and what it means."""


def cause_of_death(told: str) -> str:
    """Return why an actor is gone, from Ray's message, in one line."""
    for signs, meaning in _CAUSES.items():
        if any(sign in told for sign in signs):
            return meaning
    return one_line(told, 200)
