"""Workers in this process in the place of Ray's actors: the same calls, and losses where a test wants them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from palmette.run.cluster.worker import SearchWorker
from palmette.scale.crew import Answer, Loss, Member

Fate = Callable[[Member, str, int], Loss | None]
"""Takes a worker, the method that it was called with and how many calls of it came before; returns its loss, if any."""


class InProcessCrew:
    """Answers every call when it is collected. `changed` values are laid over the answers to `hello`."""

    def __init__(
        self,
        config: str,
        fate: Fate = lambda *_: None,
        changed: dict[str, Any] | None = None,
        worker: Callable[[str, str, str], Any] = SearchWorker,
    ) -> None:
        self._config = config
        self._worker = worker
        self._fate = fate
        self._changed = changed or {}
        self._calls: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self.members: list[Member] = []
        self.asked: list[tuple[str, int]] = []
        """The worker and the number of questions of each exchange that brought some."""

    def start(self, member: Member, seconds: float) -> None:
        if member not in self.members:
            self.members.append(member)
        member.lives += 1
        member.node = ""
        member.actor = self._worker(self._config, "", "1")
        self.call(member, seconds, "hello")

    def call(self, member: Member, seconds: float, method: str, *arguments: Any) -> None:
        assert not member.method
        member.method = method
        self._calls[member.name] = method, arguments
        if method == "exchange" and (asked := json.loads(arguments[-1])):
            self.asked.append((member.name, len(asked)))

    def collect(self, seconds: float) -> Iterator[Answer | Loss]:
        for member in list(self.members):
            if not member.method:
                continue
            method, arguments = self._calls.pop(member.name)
            count = self._counts.get((member.name, method), 0)
            self._counts[member.name, method] = count + 1
            loss = self._fate(member, method, count)
            if loss is not None:
                self.end(member)
                yield loss
                continue
            text = getattr(member.actor, method)(*arguments)
            if method == "hello":
                text = json.dumps({**json.loads(text), **self._changed})
            member.method = ""
            yield Answer(member, method, text)

    def end(self, member: Member) -> None:
        member.actor, member.method = None, ""
        self._calls.pop(member.name, None)
