"""The driver's side of rollouts on workers: sends weights, gives out questions, asks a lost worker's again."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from palmette import __version__
from palmette.errors import BackendError, RunError
from palmette.event_log import decode_event
from palmette.events import Event, OomRetry, Reclaimed
from palmette.run.cluster.losses import late_reason, refuse_deadly
from palmette.run.cluster.rollouts.weights import Hand, WorkerWeights
from palmette.run.cluster.rollouts.wire import Kind, Phase, result_of
from palmette.run.cluster.wire import questions_text, read_answer, task_text
from palmette.scale.crew import Answer, Crew, Loss, Member
from palmette.scale.fit import Demand, NodeRoom
from palmette.scale.shares import Shares
from palmette.scale.transport.sender import Sender
from palmette.scale_settings import ScaleSettings
from palmette.search.result import SearchResult
from palmette.tasks.task import Question, Task
from palmette.units import count_of, one_line

if TYPE_CHECKING:
    import torch

_LOOK_SECONDS = 0.5
"""How long the driver waits at most before it looks at deadlines."""


class WorkerRollouts:
    """Searches on the workers of a crew, each question with the weights that were published last.

    `tell` is called with what the user should know, `write` with events. A worker that is lost is started again with
    the present weights, `scale.restarts` times within one phase; in the next phase those that are out are tried again.
    """

    def __init__(
        self,
        settings: ScaleSettings,
        questions_in_flight: int,
        crew: Crew,
        demand: Demand,
        sender: Sender,
        nodes: Callable[[], list[NodeRoom]],
        tell: Callable[[str], None],
        write: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._in_flight = questions_in_flight
        self._crew = crew
        self._demand = demand
        self._weights = WorkerWeights(sender)
        self._nodes = nodes
        self._tell = tell
        self._write = write
        self._members: list[Member] = []
        self._hands: dict[str, Hand] = {}
        self._failures: Counter[str] = Counter()
        """How often each worker was lost, or did not get its weights, in this phase."""
        self._number = 0
        self.on_tokens: Callable[[int], None] | None = None

    def start(self, count: int) -> None:
        """Start so many workers; they load while the driver does other things."""
        self._members = [Member(str(number)) for number in range(1, count + 1)]
        for member in self._members:
            self._start(member)

    def publish(self, key: object, weights: "Callable[[], Mapping[str, torch.Tensor]]") -> None:
        """Have the next searches made with these weights; another key tells that they are others than before."""
        self._weights.publish(key, weights)

    def search(
        self, kind: Kind, task: Task, room: int | None, questions: Sequence[Question], seed: int
    ) -> list[SearchResult]:
        """Search the questions with the published weights and return their results in order.

        Raises BackendError where no worker is left, RunError for a question that was with too many lost workers, and
        what a worker raises.
        """
        assert self._weights.version, "weights are published first"
        self._number += 1
        phase = Phase(self._number, kind, seed, self._weights.version, room, task_text(task, questions[:1]))
        asked = {question.id: question for question in questions}
        shares = Shares(asked, self._in_flight)
        found: dict[str, SearchResult] = {}
        for member in self._members:
            if member.name not in self._hands:
                self._start(member)
        while not shares.is_done:
            self._give(phase, shares, asked)
            for told in self._crew.collect(_LOOK_SECONDS):
                if isinstance(told, Loss):
                    self._lose(told, shares)
                else:
                    self._hear(told, phase, shares, asked, found)
        self._failures.clear()
        return [found[question.id] for question in questions]

    def close(self) -> None:
        """End all workers, and write what each has done."""
        for hand in self._hands.values():
            self._crew.end(hand.member)
            self._write(hand.ended())
        self._hands = {}

    def _start(self, member: Member) -> None:
        self._crew.start(member, self._settings.start_seconds)
        self._hands[member.name] = Hand(member)

    def _give(self, phase: Phase, shares: Shares, asked: Mapping[str, Question]) -> None:
        """Call every worker that waits for a call: with weights if it has others, else with questions if there are any.

        Workers without questions are left alone: a call would keep the end of the phase waiting.
        """
        free = [hand for hand in self._hands.values() if hand.loaded is not None and not hand.member.method]
        behind = [hand for hand in free if hand.version != phase.version]
        if behind:
            failed = self._weights.send(self._crew, behind, self._settings.answer_seconds)
            if failed:
                self._tell(failed)
        for hand in free:
            name = hand.member.name
            taken = shares.take(name, len(self._hands)) if hand not in behind else []
            if not taken and not shares.of(name):
                continue
            if taken:
                hand.progressed = time.monotonic()
            left = self._settings.answer_seconds - (time.monotonic() - hand.progressed)
            given = questions_text(asked[question] for question in taken)
            self._crew.call(hand.member, max(left, 0.0), "exchange", phase.text(), given)

    def _hear(
        self,
        answer: Answer,
        phase: Phase,
        shares: Shares,
        asked: Mapping[str, Question],
        found: dict[str, SearchResult],
    ) -> None:
        member, hand = answer.member, self._hands[answer.member.name]
        values = read_answer(answer.text, str(member))
        if answer.method == "hello":
            self._greet(member, values)
            return
        if answer.method == "load":
            hand.loaded = time.monotonic()
        elif answer.method == "take_weights":
            missing = self._weights.confirm(hand, values)
            if missing:
                self._missed(hand, missing)
        elif values.get("refused"):
            # It has other weights than we thought: it gets these, and what it was asked is asked again.
            hand.version = None
            shares.lost(member.name)
            self._missed(hand, f"it has weights {values['version']}, asked for were {phase.version}")
        else:
            self._take(hand, values, phase, shares, asked, found)
        if "held_bytes" in values:
            hand.hold(int(values["held_bytes"]))

    def _greet(self, member: Member, values: Mapping[str, Any]) -> None:
        """Let a worker load the models, if it has our version."""
        member.node = one_line(str(values["node"]), 80)
        if values["version"] != __version__:
            raise BackendError(
                f"{member} has palmette {one_line(str(values['version']), 40)}, the driver {__version__}: install the "
                f"driver's version on every node"
            )
        self._crew.call(member, self._settings.start_seconds, "load")

    def _missed(self, hand: Hand, reason: str) -> None:
        name = hand.member.name
        self._failures[name] += 1
        self._tell(f"{hand.member} does not have the present weights: {reason}. It is sent them again")
        if self._failures[name] > self._settings.restarts:
            raise BackendError(f"{hand.member} did not get weights {self._weights.version}: {reason}")

    def _take(
        self,
        hand: Hand,
        values: Mapping[str, Any],
        phase: Phase,
        shares: Shares,
        asked: Mapping[str, Question],
        found: dict[str, SearchResult],
    ) -> None:
        """Take the results of a worker. Raises RunError for those that it has no reason to tell."""
        who, name, tokens = str(hand.member), hand.member.name, int(values["tokens"])
        if (values["version"], values["phase"]) != (phase.version, phase.number):
            raise RunError(f"{who} told of results by other weights or of another phase than it was asked for")
        if values["results"] or tokens > hand.tokens:
            hand.progressed = time.monotonic()
        if self.on_tokens is not None and tokens > hand.tokens:
            self.on_tokens(tokens - hand.tokens)
        hand.tokens = tokens
        for line in values["events"]:
            event = decode_event(str(line), f"an event of {who}")
            if isinstance(event, OomRetry | Reclaimed):
                self._write(replace(event, worker=name))
        for told in values["results"]:
            result = result_of(told, asked, who)
            if not shares.finished(name, result.question.id):
                raise RunError(f"{who} told of question {one_line(result.question.id, 80)}, which it was not given")
            hand.questions += 1
            found[result.question.id] = result

    def _lose(self, loss: Loss, shares: Shares) -> None:
        """Take a lost worker's questions back, and start it again where it may be; others go on meanwhile."""
        member, hand, settings = loss.member, self._hands.pop(loss.member.name), self._settings
        who = str(member)
        questions = shares.lost(member.name)
        self._write(hand.ended(loss.reason))
        refuse_deadly(questions, shares.losses, settings.restarts)
        self._failures[member.name] += 1
        came = not (loss.was_late and loss.method in ("hello", "load"))
        again = came and self._failures[member.name] <= settings.restarts
        reason = loss.reason
        if loss.was_late:
            reason = late_reason(loss.method, settings, len(self._members), self._demand, self._nodes())
        went = f"{count_of(len(questions), 'question')} will be asked again" if questions else "it had no questions"
        self._tell(f"{who} is lost: {reason}; {went}" + ("" if again else "; it is not started again in this phase"))
        if again:
            self._start(member)
        elif not self._hands:
            raise BackendError(f"no worker is left, the last was {who}: {reason}")
