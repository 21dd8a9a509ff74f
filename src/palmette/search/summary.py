"""Adds up a run's events: accuracy of every vote, tokens, KV tokens, time and model calls."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from palmette.errors import RunError
from palmette.events import Event, QuestionFinished, RunStarted, ServerUse, Session


@dataclass(frozen=True)
class Accuracy:
    """The share of questions answered correctly, with its 95% Wilson interval and how often each outcome occurred."""

    correct: float
    questions: int
    outcomes: dict[str, int]

    @classmethod
    def of(cls, outcomes: "Sequence[str | None]") -> "Accuracy":
        """Count outcomes. None, an answer that could not be judged, is left out."""
        counts = Counter(outcome for outcome in outcomes if outcome is not None)
        return cls(counts["correct"], counts.total(), dict(counts))

    @property
    def share(self) -> float:
        """The share of correct answers, 0 without questions."""
        return self.correct / self.questions if self.questions else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% Wilson interval, valid near 0 and 1 and for few questions too; (0, 1) without questions."""
        if not self.questions:
            return 0.0, 1.0
        z, n, p = 1.96, self.questions, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Summary:
    """One run in numbers. `generated_tokens` and `mean_kv_tokens` are means per question.

    KV tokens are those that the cache holds for one question's tree, every distinct prefix once; the peaks are those of
    the largest tree. `peak_separate_kv_tokens` counts the whole path of every branch.

    `single` is the accuracy of one leaf taken at random, `any_leaf` the share of questions with at least one
    correct leaf. `seconds` is the time of all processes that worked on the run and were not killed (a killed one
    records no time); these finished `timed_questions` questions. `out_of_room` counts the questions that ended
    because their tree had filled its share of the KV budget.
    """

    config: dict[str, Any]
    questions: int
    votes: dict[str, Accuracy]
    single: Accuracy
    any_leaf: Accuracy
    generated_tokens: float
    mean_kv_tokens: float
    peak_kv_tokens: int
    peak_separate_kv_tokens: int
    seconds: float
    timed_questions: int
    policy_calls: int
    reward_calls: int
    kv_bytes_per_token: int
    out_of_room: int = 0
    servers: tuple[ServerUse, ...] = ()
    """What each server of the policy did in each session."""

    @property
    def server_hit_share(self) -> float | None:
        """The share of prompt tokens that servers found in their prefix caches; None where none tells."""
        looked_up = sum(use.prefix_tokens or 0 for use in self.servers if use.prefix_hits is not None)
        return sum(use.prefix_hits or 0 for use in self.servers) / looked_up if looked_up else None

    @property
    def server_preemptions(self) -> int | None:
        """How often servers had to give up a running request's KV; None where none tells."""
        told = [use.preemptions for use in self.servers if use.preemptions is not None]
        return sum(told) if told else None


def summarize(events: Iterable[Event]) -> Summary:
    """Return the summary of a run's events. Raises RunError if the first event, the one with the config, is missing."""
    started: RunStarted | None = None
    finished: dict[str, QuestionFinished] = {}
    sessions: list[Session] = []
    for event in events:
        if isinstance(event, RunStarted):
            started = event
        elif isinstance(event, QuestionFinished):
            finished[event.question] = event
        elif isinstance(event, Session):
            sessions.append(event)
    if started is None:
        raise RunError("the run has no first event: it was stopped before it began; start it again in a new folder")
    done = list(finished.values())
    count = max(1, len(done))
    votes = sorted(set.intersection(*(set(event.choices) for event in done))) if done else []
    return Summary(
        config=started.config,
        questions=len(done),
        votes={vote: _vote(done, vote) for vote in votes},
        single=_single(done),
        any_leaf=_any(done),
        generated_tokens=sum(event.generated_tokens for event in done) / count,
        mean_kv_tokens=math.fsum(event.mean_kv_tokens for event in done) / count,
        peak_kv_tokens=max((event.peak_kv_tokens for event in done), default=0),
        peak_separate_kv_tokens=max((event.peak_separate_kv_tokens for event in done), default=0),
        seconds=sum(session.seconds for session in sessions),
        timed_questions=sum(session.questions for session in sessions),
        policy_calls=sum(session.policy_calls for session in sessions),
        reward_calls=sum(session.reward_calls for session in sessions),
        kv_bytes_per_token=sessions[-1].kv_bytes_per_token if sessions else 0,
        out_of_room=sum(event.out_of_room for event in done),
        servers=tuple(use for session in sessions for use in session.servers),
    )


def _vote(done: list[QuestionFinished], vote: str) -> Accuracy:
    return Accuracy.of([event.choices[vote].outcome for event in done])


def _single(done: list[QuestionFinished]) -> Accuracy:
    """Return the accuracy of a leaf taken at random: the mean over questions of the share of correct leaves."""
    outcomes: Counter[str] = Counter()
    judged = [event for event in done if any(event.leaf_outcomes.values())]
    for event in judged:
        outcomes.update(event.leaf_outcomes)
    # fsum: a resumed run finishes its questions in another order, which must not change the sum.
    correct = math.fsum(event.leaf_outcomes.get("correct", 0) / sum(event.leaf_outcomes.values()) for event in judged)
    return Accuracy(correct, len(judged), dict(outcomes))


def _any(done: list[QuestionFinished]) -> Accuracy:
    """Return the share of questions with at least one correct leaf: the accuracy of a perfect vote."""
    judged = [event for event in done if any(event.leaf_outcomes.values())]
    hits = sum(event.leaf_outcomes.get("correct", 0) > 0 for event in judged)
    return Accuracy(hits, len(judged), {"correct": hits})
