"""The simulation itself: a clock that jumps from one event to the next, the same for the same seed.

Events are questions that reach a worker, rows that end, nodes that fail and come back, updates that are done. A library
for simulations would not be shorter: workers that share a device change each other's speed, which none of them has.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from palmette.errors import ConfigError, RunError
from palmette.simulate.costs import Costs
from palmette.simulate.driver import Driver
from palmette.simulate.learning import Learning
from palmette.simulate.nodes import Nodes
from palmette.simulate.outcome import Outcome
from palmette.simulate.setup import Learner, Setup
from palmette.simulate.work import Question

_MOST_ATTEMPTS = 1000
_HOUR = 3600.0


def simulate(
    questions: Sequence[Question],
    setup: Setup,
    costs: Costs,
    *,
    seed: int = 0,
    learner: Learner | None = None,
    owners: Sequence[int] | None = None,
) -> Outcome:
    """Return what came of asking these questions, in this order; with a learner, update after update.

    `owners` are the workers that they were dealt to beforehand; without them a driver shares them out. Raises
    ConfigError without questions or where they are too few for the learner's updates, RunError where nodes fail so
    often that the run would not end.
    """
    if not questions:
        raise ConfigError("there are no questions to simulate: give at least 1")
    if learner is not None and len(questions) < learner.questions * learner.updates:
        raise ConfigError(f"{learner.updates} updates of {learner.questions} questions need more than {len(questions)}")
    _check_failures(questions, setup, costs)
    return _Simulation(questions, setup, costs, seed, learner, owners).run()


def _check_failures(questions: Sequence[Question], setup: Setup, costs: Costs) -> None:
    """Raise RunError where hardly any attempt at the longest question would outlive its node."""
    rate = setup.failures_per_hour / _HOUR
    alone = max(alone_seconds(question, costs) for question in questions)
    if rate * alone > math.log(_MOST_ATTEMPTS):
        raise RunError(
            f"{setup.failures_per_hour:g} failures per hour of a node never let the run end: its longest question "
            f"takes {alone:.3g} s, a node lives {1 / rate:.3g} s on average. Give fewer failures"
        )


def alone_seconds(question: Question, costs: Costs) -> float:
    """Return the least that a question takes: all steps of a wave beside each other, in ticks of one row."""
    ticks = sum(max(wave.steps, default=0) for wave in question.waves)
    return ticks * costs.tick(1, 1) + question.steps * costs.step_seconds + costs.question_seconds


@dataclass
class _Flight:
    """A question that a worker has: its present wave, and how many rows of it are left."""

    question: int
    home: int
    began: float
    wave: int = 0
    left: int = 0
    visited: set[int] = field(default_factory=set)


class _Simulation:
    def __init__(
        self,
        questions: Sequence[Question],
        setup: Setup,
        costs: Costs,
        seed: int,
        learner: Learner | None,
        owners: Sequence[int] | None,
    ) -> None:
        self._questions, self._setup, self._costs = questions, setup, costs
        self._random = random.Random(seed)
        self._driver = Driver(setup, owners)
        self._learning = None if learner is None else Learning(learner, setup, self._random)
        self._nodes = Nodes(setup, costs, self._at)
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = self._next = self._turn = self._released = 0
        self._now = self._driver_free = 0.0
        self._flights: dict[int, _Flight] = {}
        self._attempts: Counter[int] = Counter()
        self._taken: list[float] = []
        self._prefilled = self._failures = 0

    def run(self) -> Outcome:
        self._release()
        for node in range(self._setup.nodes if self._setup.failures_per_hour else 0):
            self._fail_later(node)
        while not self._is_done():
            self._now, _, kind, index, extra = heapq.heappop(self._events)
            self._nodes.now = self._now
            getattr(self, f"_on_{kind}")(index, extra)
        nodes, learning = self._nodes, self._learning
        return Outcome(
            workers=self._setup.all_workers, questions=len(self._taken), seconds=self._now,
            question_seconds=tuple(self._taken), busy_seconds=sum(worker.busy_seconds for worker in nodes.workers),
            capacity=self._setup.nodes * min(self._setup.devices, self._setup.workers),
            tail_seconds=nodes.waited_seconds / self._setup.all_workers,
            ticks=sum(worker.counted_ticks for worker in nodes.workers),
            sizes=tuple(worker.sizes for worker in nodes.workers), prefill_tokens=self._prefilled,
            failures=self._failures + (learning.failures if learning else 0),
            lost_questions=sum(self._attempts.values()),
            update_seconds=tuple(learning.update_seconds) if learning else (),
            learner_seconds=learning.seconds if learning else 0.0,
        )  # fmt: skip

    def _is_done(self) -> bool:
        return len(self._taken) == len(self._questions) if self._learning is None else self._learning.is_done

    def _at(self, moment: float, kind: str, index: int, extra: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (moment, self._order, kind, index, extra))

    # Questions, and the waves of each.

    def _release(self) -> None:
        """Queue the questions that may be asked with the present weights."""
        most = len(self._questions) if self._learning is None else self._learning.may_ask
        for question in range(self._released, most):
            self._driver.put(question)
        self._released = max(self._released, most)
        self._give()

    def _give(self) -> None:
        """Send out what can be asked; the driver sends one question after the other."""
        while (given := self._driver.next(self._nodes.is_up)) is not None:
            worker, question = given
            self._driver_free = max(self._now, self._driver_free) + self._setup.dispatch_seconds
            self._flights[self._next] = _Flight(question, worker, self._driver_free)
            self._at(self._driver_free, "arrive", self._next)
            self._next += 1

    def _on_arrive(self, key: int, _: int) -> None:
        if key in self._flights:  # Else its worker was lost while it was on its way.
            self._start_wave(key)

    def _start_wave(self, key: int) -> None:
        flight = self._flights[key]
        waves = self._questions[flight.question].waves
        if flight.wave == len(waves):
            with self._nodes.changing(flight.home) as home:
                home.pending_seconds += self._costs.question_seconds
                home.closing.append(key)
            return
        wave = waves[flight.wave]
        flight.wave, flight.left = flight.wave + 1, len(wave.steps)
        for index, steps in self._placed(flight, len(wave.steps)).items():
            tokens = self._missing(flight, index, [wave.prefixes[step] for step in steps], wave.held_tokens)
            self._prefilled += tokens
            with self._nodes.changing(index) as worker:
                worker.pending_seconds += tokens * self._costs.row_seconds
                for (length, shared), count in wave.rows(steps).items():
                    worker.add(key, length, count, shared if self._is_affine else 0)

    @property
    def _is_affine(self) -> bool:
        return self._setup.routing == "affine" or self._setup.all_workers == 1

    def _placed(self, flight: _Flight, steps: int) -> dict[int, Sequence[int]]:
        """Return which worker generates which steps of a wave: its own, or the next ones in turn."""
        if self._is_affine:
            return {flight.home: range(steps)}
        placed: dict[int, list[int]] = {}
        for step in range(steps):
            self._turn = self._nodes.next_up(self._turn)
            placed.setdefault(self._turn, []).append(step)
        return dict(placed)

    def _missing(self, flight: _Flight, index: int, prefixes: Sequence[int], held: int) -> int:
        """Return the tokens that a worker has to compute before it can go on from these prefixes.

        A question's own worker has all of them but the prompt of its first wave. Another has the prompt if it was asked
        before: the steps since then were generated elsewhere.
        """
        prompt = self._questions[flight.question].prompt_tokens
        was_there = index in flight.visited
        flight.visited.add(index)
        if self._is_affine:
            return 0 if was_there else prompt
        return max(0, min(held, sum(prefixes)) - (prompt if was_there else 0))

    def _on_worker(self, index: int, stamp: int) -> None:
        if stamp != self._nodes.workers[index].stamp:
            return
        with self._nodes.changing(index) as worker:
            worker.settle()
            closing, worker.closing = worker.closing, []
            ended = worker.ended()
        for key in closing:
            self._finish(key)
        ready = []
        for key, count in ended:
            flight = self._flights.get(key)
            if flight is not None:  # Else it was lost with another node, and is asked again.
                flight.left -= count
                ready += [] if flight.left else [key]
        for key in ready:
            flight = self._flights[key]
            with self._nodes.changing(flight.home) as home:
                steps = len(self._questions[flight.question].waves[flight.wave - 1].steps)
                home.pending_seconds += steps * self._costs.step_seconds
        for key in ready:
            self._start_wave(key)

    def _finish(self, key: int) -> None:
        flight = self._flights.pop(key)
        self._taken.append(self._now - flight.began)
        self._driver.ended(flight.home)
        if not self._flights and not self._driver.waiting:
            self._nodes.wait_for_last()
        self._learn()
        self._give()

    def _learn(self) -> None:
        seconds = None if self._learning is None else self._learning.begin(len(self._taken))
        if seconds is not None:
            self._at(self._now + seconds, "learned", 0)

    def _on_learned(self, _: int, __: int) -> None:
        assert self._learning is not None
        self._learning.end(self._now)
        self._nodes.begin_wait()
        self._learn()
        self._release()

    # Failures.

    def _fail_later(self, node: int) -> None:
        self._at(self._now + self._random.expovariate(self._setup.failures_per_hour / _HOUR), "fail", node)

    def _on_fail(self, node: int, _: int) -> None:
        self._failures += 1
        gone = set(self._nodes.fail(node))
        lost = [key for key, flight in self._flights.items() if flight.home in gone or flight.visited & gone]
        for key in reversed(lost):
            flight = self._flights.pop(key)
            self._attempts[flight.question] += 1
            if self._attempts[flight.question] == _MOST_ATTEMPTS:
                raise RunError(
                    f"{self._setup.failures_per_hour:g} failures per hour of a node never let the run end: one "
                    f"question was lost {_MOST_ATTEMPTS:,} times. Give fewer failures"
                )
            self._driver.ended(flight.home)
            self._driver.put(flight.question, first=True)
        self._at(self._now + self._setup.repair_seconds, "back", node)
        self._give()

    def _on_back(self, node: int, _: int) -> None:
        for worker in self._nodes.come_back(node):
            self._driver.back(worker)
        self._fail_later(node)
        self._give()
