"""One backend, scorer and embedder for many searches: a thread owns them and starts the steps of all seats in turn."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from palmette.backends.backend import Expansion, Interruptible, Step, TellsFailures
from palmette.errors import BackendError
from palmette.run.parts import Parts
from palmette.run.watch import Watch
from palmette.score.scorer import Candidate
from palmette.serve.searching.seat import Seat
from palmette.tasks.task import Message
from palmette.units import describe_error

Found = TypeVar("Found")
_Siblings = tuple[Expansion, ...]
_Landing = tuple[Expansion, Step]


class SharedEngine:
    """Runs everything that touches a model in a thread of its own; what others ask for waits in its inbox.

    A seat's steps are started a parent at a time, the seats in turn, as long as fewer than `most_rows` are in flight: a
    wide search does not hold up a narrow one. Steps of one parent start together, so that equal ones are computed once.
    Candidates that wait at the same moment are scored in one call. Nothing is locked while a model runs.
    """

    def __init__(self, parts: Parts, watch: Watch, most_rows: int) -> None:
        self.parts = parts
        self.scores = parts.scorer is not None
        self._watch = watch
        self.name = "none" if parts.embedder is None else parts.embedder.name
        """The embedder's: a clusterer takes the engine for one."""
        self._embedder = None if parts.embedder is None else watch.embedder(parts.embedder)
        self._most_rows = most_rows
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: dict[Seat, deque[_Siblings]] = {}
        self._flying: dict[tuple[str, int | None], Seat] = {}
        self._unscored: list[tuple[Sequence[Candidate], Future[list[float]]]] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="palmette-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Found]) -> "Future[Found]":
        """Have the thread call a function; return the future of its result."""
        future: Future[Found] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  # Raised where the result is waited for.
                future.set_exception(error)

        self._post(work)
        return future

    def start(self, seat: Seat, expansions: Sequence[Expansion]) -> None:
        """Take the steps of a seat; each is handed to `seat.land` when it is done."""
        self._post(lambda: self._take(seat, expansions))

    def release(self, seat: Seat, nodes: Sequence[int]) -> None:
        """Free the KV of these nodes of a seat, and give up steps for them."""
        self._post(lambda: self._release(seat, set(nodes)))

    def leave(self, seat: Seat) -> "Future[None]":
        """Free all that is kept for a seat; the future is done when it is free."""
        return self.call(lambda: self._release(seat, set(seat.nodes)))

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the scores of candidates, together with those that others ask for; waits for them."""
        future: Future[list[float]] = Future()
        self._post(lambda: self._unscored.append((candidates, future)))
        return future.result()

    def forget(self, messages: Sequence[Message]) -> None:
        """Have the scorer free what it keeps for a question."""
        scorer = self._watch.scorer
        if scorer is not None:
            self._post(lambda: scorer.forget(messages))

    def embed(self, texts: Sequence[str]) -> Any:
        """Return a vector for each text; waits for them."""
        embedder = self._embedder
        assert embedder is not None
        return self.call(lambda: embedder.embed(texts)).result()

    def close(self) -> None:
        """End the thread; searches that are under way fail."""
        self._post(self._end)
        self._thread.join()

    def _post(self, work: Callable[[], None]) -> None:
        self._inbox.put(work)
        if isinstance(self.parts.backend, Interruptible):
            self.parts.backend.interrupt()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._work_off(wait=not (self._flying or self._waiting))
                self._score_together()
                self._start_in_turn()
                if self._flying and not self._is_closed:
                    self._land(self._watch.backend.finished())
            except Exception as error:  # noqa: BLE001  # Every search that waits for a step is told.
                self._fail(error)
        self._work_off(wait=False)

    def _work_off(self, *, wait: bool) -> None:
        """Do what waits in the inbox; with `wait` at least one thing, however long it takes to come."""
        try:
            self._inbox.get(block=wait)()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            pass

    def _take(self, seat: Seat, expansions: Sequence[Expansion]) -> None:
        if not seat.is_open:
            return
        siblings: dict[int, list[Expansion]] = {}
        for expansion in expansions:
            siblings.setdefault(expansion.parent, []).append(expansion)
        self._waiting.setdefault(seat, deque()).extend(map(tuple, siblings.values()))

    def _start_in_turn(self) -> None:
        while self._waiting and len(self._flying) < self._most_rows:
            seat, groups = next(iter(self._waiting.items()))
            siblings = groups.popleft()
            del self._waiting[seat]
            if groups:
                self._waiting[seat] = groups  # Behind all other seats.
            seat.nodes.update(each.node for each in siblings if each.node is not None)
            seat.nodes.add(siblings[0].parent)
            try:
                self._watch.backend.start(siblings)
            except Exception as error:  # noqa: BLE001  # Only the search that asked for it is told.
                seat.give_up(_as_backend_error(error))
            else:
                self._flying.update({(seat.name, each.node): seat for each in siblings})

    def _land(self, landed: Sequence[_Landing]) -> None:
        for expansion, step in landed:
            seat = self._flying.pop((expansion.question, expansion.node), None)
            if seat is not None:
                seat.land(expansion, step)

    def _release(self, seat: Seat, nodes: set[int]) -> None:
        if seat in self._waiting:
            kept = [tuple(each for each in group if each.node not in nodes) for group in self._waiting.pop(seat)]
            if any(kept):
                self._waiting[seat] = deque(group for group in kept if group)
        for node in nodes:
            self._flying.pop((seat.name, node), None)
        held = sorted(nodes & seat.nodes)
        seat.nodes.difference_update(nodes)
        if held:
            self._watch.backend.release(seat.name, held)

    def _score_together(self) -> None:
        asked, self._unscored = [one for one in self._unscored if not self._begun(*one)], []
        if len(asked) > 1:
            with suppress(Exception):  # One of them is at fault: each is scored alone and told its own error.
                self._score([candidate for candidates, _ in asked for candidate in candidates], asked)
                return
        for one in asked:
            try:
                self._score(one[0], [one])
            except Exception as error:  # noqa: BLE001  # Raised where the scores are waited for.
                one[1].set_exception(error)

    def _begun(self, candidates: Sequence[Candidate], scores: "Future[list[float]]") -> bool:
        """Have the scorer begin, where it can while steps are generated; return whether it has."""
        assert self._watch.scorer is not None
        try:
            begun = self._watch.scorer.begin(candidates)
        except Exception as error:  # noqa: BLE001  # Raised where the scores are waited for.
            scores.set_exception(error)
            return True
        if begun is not None:
            begun.add_done_callback(lambda done: _pass_on(done, scores))
        return begun is not None

    def _score(
        self, candidates: Sequence[Candidate], asked: Sequence[tuple[Sequence[Candidate], "Future[list[float]]"]]
    ) -> None:
        assert self._watch.scorer is not None
        scores = list(self._watch.scorer.score(candidates))
        begun = 0
        for own, future in asked:
            future.set_result(scores[begun : begun + len(own)])
            begun += len(own)

    def _fail(self, error: Exception) -> None:
        """Give up the search that the backend failed at; all that have steps in flight where it does not tell which."""
        backend = self.parts.backend
        failed = backend.failed_question if isinstance(backend, TellsFailures) else None
        for seat in dict.fromkeys(self._flying.values()):
            if failed in (None, seat.name):
                seat.give_up(_as_backend_error(error))
                with suppress(Exception):
                    self._release(seat, set(seat.nodes))

    def _end(self) -> None:
        self._is_closed = True
        over = BackendError("the gateway is being stopped")
        for seat in {*self._waiting, *self._flying.values()}:
            seat.give_up(over)
        for _, future in self._unscored:
            future.set_exception(over)


def _pass_on(done: "Future[list[float]]", to: "Future[list[float]]") -> None:
    try:
        to.set_result(done.result())
    except BaseException as error:  # noqa: BLE001  # Raised where the scores are waited for.
        to.set_exception(error)


def _as_backend_error(error: Exception) -> Exception:
    return error if isinstance(error, BackendError) else BackendError(f"the policy failed: {describe_error(error)}")
