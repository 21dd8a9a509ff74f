"""The training loop: roll out, judge, give credit, update, evaluate, write a checkpoint."""

import hashlib
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby

from palmette.errors import RunError
from palmette.events import Evaluated, Event, Noticed, UpdateDone
from palmette.search.result import SearchResult
from palmette.settings import Aggregate, TrainSettings
from palmette.tasks.task import Question
from palmette.train.notices import notices_of
from palmette.train.phases import TimedPhases
from palmette.train.rewards.rewards import Rewards
from palmette.train.rewards.signature import TrainerState
from palmette.train.rollout.credits import GivesCredit
from palmette.train.rollout.groups import Group, make_groups
from palmette.train.rollout.order import QuestionOrder
from palmette.train.rollout.responses import responses_of
from palmette.train.rollout.shown import shown_samples, shown_trees
from palmette.train.rollout.statistics import statistics_of
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult


@dataclass
class Progress:
    """What a training run has to remember beside weights and optimizer state: a checkpoint holds it."""

    update: int = 0
    """Updates done."""
    position: int = 0
    """Questions taken from the order."""
    without_signal: int = 0
    """Updates in a row in which no group had a signal."""
    first_entropy: float | None = None
    """The entropy of the first update."""


@dataclass(frozen=True)
class TrainingParts:
    """What the loop calls, one after the other.

    `roll_out` searches questions with a seed and returns the results in their order. `reference` returns
    log-probabilities under the reference policy, None where no KL divergence is asked for; `values` what a critic
    expects before each token, None without one. `compare` corrects samples that a server generated, with statistics;
    None where this process generates them. `learning_rate` returns that of the next update, given the number of
    updates done; `update` makes one optimizer step with it, and its last argument tells that the policy has not changed
    since it generated the samples. `phase` meters a block under a name and frees unused memory after it.
    """

    order: QuestionOrder
    roll_out: Callable[[Sequence[Question], int], list[SearchResult]]
    rewards: Rewards
    credit: GivesCredit
    reference: Callable[[Sequence[Sample]], list[tuple[float, ...]]] | None
    values: Callable[[Sequence[Sample]], list[tuple[float, ...]]] | None
    compare: Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, float]]] | None
    learning_rate: Callable[[int], float]
    update: Callable[[Sequence[Sample], float, bool], UpdateResult]
    evaluate: Callable[[int], Evaluated]
    checkpoint: Callable[[Progress, float | None], Event]
    phase: Callable[[str], AbstractContextManager[None]]
    peak_bytes: Callable[[], dict[str, int]]
    record: Callable[[Event], None]


def train(
    parts: TrainingParts, settings: TrainSettings, progress: Progress, *, seed: int, aggregate: Aggregate
) -> Iterator[UpdateDone | Evaluated | Noticed]:
    """Train until `train.updates` updates are done, from where `progress` is; yield what the user should see.

    Everything random depends on the seed and on the progress alone: a run that goes on from a checkpoint gives the
    weights of one that was never stopped. Raises RunError after `train.stop_without_signal` updates in a row in which
    no group had a signal.
    """
    if settings.eval_every and not progress.update:
        yield _recorded(parts, parts.evaluate(0))
    while progress.update < settings.updates:
        done = next_update(parts, settings, progress, seed=seed, aggregate=aggregate)
        yield _recorded(parts, done)
        for notice in notices_of(done, progress.first_entropy, progress.without_signal):
            yield _recorded(parts, notice)
        metric = None
        is_last = progress.update == settings.updates
        if settings.eval_every and (is_last or progress.update % settings.eval_every == 0):
            evaluated = parts.evaluate(progress.update)
            metric = evaluated.single
            yield _recorded(parts, evaluated)
        has_no_signal = progress.without_signal >= settings.stop_without_signal
        if metric is not None or is_last or has_no_signal or progress.update % settings.checkpoint_every == 0:
            parts.record(parts.checkpoint(progress, metric))
        if has_no_signal:
            raise RunError(
                f"in the last {progress.without_signal} updates all responses to a question had the same reward, so "
                f"nothing was learned: take easier or harder questions, a larger search.width, or another reward. "
                f"train.stop_without_signal sets after how many updates training stops"
            )


def next_update(
    parts: TrainingParts, settings: TrainSettings, progress: Progress, *, seed: int, aggregate: Aggregate
) -> UpdateDone:
    """Make one update and set `progress` to where it has led."""
    timed = TimedPhases(parts.phase)
    with timed("rollout"):
        groups, told = _roll_out(parts, settings, progress, seed, aggregate)
    used = [group for group in groups if group.has_signal] if parts.credit.most_draws > 1 else groups
    samples = _samples(parts, used[: settings.questions], timed)
    if samples and parts.compare is not None:
        with timed("compare"):
            samples, compared = parts.compare(samples)
        told |= compared
    results: list[UpdateResult] = []
    learning_rate = parts.learning_rate(progress.update)
    if samples and (parts.credit.pulls or any(any(sample.advantages) for sample in samples)):
        steps = settings.mini_batches * settings.epochs
        with timed("update"):
            for batch in _batches(samples, settings, f"{seed} {progress.update}"):
                results.append(parts.update(batch, learning_rate, steps == 1))
    progress.update += 1
    progress.without_signal = 0 if any(group.has_signal for group in groups) else progress.without_signal + 1
    numbers = statistics_of(groups, samples, results, timed.seconds)
    numbers |= {**told, "learning_rate": learning_rate}
    if progress.first_entropy is None and results:
        progress.first_entropy = numbers["entropy"]
    credited = parts.credit.of_steps(used[: settings.questions])
    shown, trees = shown_samples(groups, samples, credited), shown_trees(groups, samples, credited)
    return UpdateDone(progress.update, progress.position, numbers, timed.seconds, parts.peak_bytes(), shown, trees)


def _roll_out(
    parts: TrainingParts, settings: TrainSettings, progress: Progress, seed: int, aggregate: Aggregate
) -> tuple[list[Group], dict[str, float]]:
    """Return the groups of one update with statistics: draws of questions, failed rewards, what functions logged.

    An algorithm that leaves out groups without a signal draws further questions in their place, a limited number of
    times.
    """
    groups: list[Group] = []
    draws = failed = 0
    logged: dict[str, list[float]] = {}
    while not draws or (draws < parts.credit.most_draws and _with_signal(groups) < settings.questions):
        questions, progress.position = parts.order.take(progress.position, settings.questions)
        results = parts.roll_out(questions, _rollout_seed(seed, progress.update, draws))
        responses = [response for result in results for response in responses_of(result, aggregate)]
        epoch = progress.position / max(1, len(parts.order))
        rewarded = parts.rewards.of(responses, TrainerState(progress.update, settings.updates, epoch))
        groups += make_groups(results, responses, rewarded)
        failed += rewarded.failed
        draws += 1
        for name, values in rewarded.metrics.items():
            logged.setdefault(f"metric {name}", []).extend(values)
    means = {name: statistics.fmean(values) for name, values in logged.items()}
    return groups, {"draws": float(draws), "failed_rewards": float(failed), **means}


def _samples(parts: TrainingParts, groups: Sequence[Group], timed: TimedPhases) -> list[Sample]:
    """Return the samples of an update with their advantages, and what reference and critic say of their tokens."""
    samples = parts.credit.bare(groups)
    if samples and parts.reference is not None:
        with timed("reference"):
            logprobs = parts.reference(samples)
        samples = [replace(sample, reference_logprobs=own) for sample, own in zip(samples, logprobs, strict=True)]
    if samples and parts.values is not None:
        with timed("values"):
            values = parts.values(samples)
        samples = [replace(sample, old_values=own) for sample, own in zip(samples, values, strict=True)]
    return parts.credit.credited(groups, samples)


def _batches(samples: Sequence[Sample], settings: TrainSettings, seed: str) -> Iterator[list[Sample]]:
    """Yield the mini-batches of all epochs: whole groups, shuffled where there are several, about equal in number."""
    groups = [list(members) for _, members in groupby(samples, key=lambda sample: sample.group)]
    for epoch in range(settings.epochs):
        if settings.mini_batches > 1:
            random.Random(f"{seed} {epoch}").shuffle(groups)
        count = min(settings.mini_batches, len(groups))
        for number in range(count):
            part = groups[number * len(groups) // count : (number + 1) * len(groups) // count]
            yield [sample for members in part for sample in members]


def _with_signal(groups: Sequence[Group]) -> int:
    return sum(group.has_signal for group in groups)


def _rollout_seed(seed: int, update: int, draw: int) -> int:
    digest = hashlib.blake2b(f"{seed}\0{update}\0{draw}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _recorded(parts: TrainingParts, event: "Shown") -> "Shown":
    parts.record(event)
    return event


Shown = UpdateDone | Evaluated | Noticed
