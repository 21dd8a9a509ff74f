"""What a run's finished questions add up to."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from palmette.errors import RunError
from palmette.events import Event, QuestionFinished, RunStarted, Session


@dataclass(frozen=True)
class Accuracy:
    """A share of questions answered right, with its 95% Wilson interval and the four outcomes behind it."""

    correct: float
    questions: int
    outcomes: dict[str, int]

    @classmethod
    def of(cls, outcomes: "Sequence[str | None]") -> "Accuracy":
        """Count outcomes; those that nobody could judge are left out."""
        counts = Counter(outcome for outcome in outcomes if outcome is not None)
        return cls(counts["correct"], counts.total(), dict(counts))

    @property
    def share(self) -> float:
        """Return the share, 0 without questions."""
        return self.correct / self.questions if self.questions else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return the Wilson interval: honest near 0 and 1, and for few questions."""
        if not self.questions:
            return 0.0, 1.0
        z, n, p = 1.96, self.questions, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Summary:
    """One run in numbers. Tokens are means per question; KV tokens are those of one question's tree.

    `seconds` are those of processes that were not killed, which finished `timed_questions` of the questions.
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


def summarize(events: Iterable[Event]) -> Summary:
    """Add up a run's events. Raises RunError where they do not begin with the run's config."""
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
    )


def _vote(done: list[QuestionFinished], vote: str) -> Accuracy:
    return Accuracy.of([event.choices[vote].outcome for event in done])


def _single(done: list[QuestionFinished]) -> Accuracy:
    """Return how often one leaf alone is right, each question counted once however many leaves it has."""
    outcomes: Counter[str] = Counter()
    judged = [event for event in done if event.leaf_outcomes]
    for event in judged:
        outcomes.update(event.leaf_outcomes)
    # fsum: questions finish in another order after a resume, and the sum must not show it.
    correct = math.fsum(event.leaf_outcomes.get("correct", 0) / sum(event.leaf_outcomes.values()) for event in judged)
    return Accuracy(correct, len(judged), dict(outcomes))


def _any(done: list[QuestionFinished]) -> Accuracy:
    """Return how often at least one leaf is right: what a perfect vote would reach."""
    judged = [event for event in done if event.leaf_outcomes]
    hits = sum(event.leaf_outcomes.get("correct", 0) > 0 for event in judged)
    return Accuracy(hits, len(judged), {"correct": hits})
