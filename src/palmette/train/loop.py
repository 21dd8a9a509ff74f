"""The training loop: roll out, judge, give credit, update, evaluate, write a checkpoint."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby

from palmette.errors import RunError
from palmette.events import Evaluated, Noticed, UpdateDone
from palmette.settings import Aggregate, TrainSettings
from palmette.train.notices import notices_of
from palmette.train.phases import TimedPhases
from palmette.train.rollout.ahead import Ahead
from palmette.train.rollout.groups import Group
from palmette.train.rollout.shown import shown_samples, shown_trees
from palmette.train.rollout.statistics import statistics_of
from palmette.train.samples import Sample
from palmette.train.training_parts import Progress, TrainingParts
from palmette.train.update.update_result import UpdateResult


def train(
    parts: TrainingParts, settings: TrainSettings, progress: Progress, *, seed: int, aggregate: Aggregate
) -> Iterator[UpdateDone | Evaluated | Noticed]:
    """Train until `train.updates` updates are done, from where `progress` is; yield what the user should see.

    Everything random depends on the seed and on the progress alone: a run that goes on from a checkpoint gives the
    weights of one that was never stopped. Raises RunError after `train.stop_without_signal` updates in a row in which
    no group had a signal.
    """
    ahead = Ahead(parts, settings, seed=seed, aggregate=aggregate)
    if settings.eval_every and not progress.update:
        yield _recorded(parts, parts.evaluate(0))
    while progress.update < settings.updates:
        done = next_update(parts, settings, progress, ahead)
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


def next_update(parts: TrainingParts, settings: TrainSettings, progress: Progress, ahead: Ahead) -> UpdateDone:
    """Make one update and set `progress` to where it has led."""
    rolled, timed = ahead.take(progress)
    groups, told = rolled.groups, dict(rolled.numbers)
    used = [group for group in groups if group.has_signal] if parts.credit.most_draws > 1 else groups
    samples = _samples(parts, used[: settings.questions], timed)
    if samples and parts.compare is not None:
        with timed("compare"):
            samples, compared = parts.compare(samples)
        told |= compared
    if parts.staleness:
        told["weights_age"] = float(progress.update - rolled.version)
    learning_rate = parts.learning_rate(progress.update)
    results: list[UpdateResult] = []
    if samples and (parts.credit.pulls or any(any(sample.advantages) for sample in samples)):
        # Corrected samples have the log-probabilities of the present weights as their old ones.
        is_fresh = rolled.version == progress.update or settings.server_ratio != "off"
        on_policy = is_fresh and settings.mini_batches * settings.epochs == 1
        batches = list(_batches(samples, settings, f"{ahead.seed} {progress.update}"))
        results = _learned(parts, batches, learning_rate, on_policy, ahead, progress, timed)
    elif parts.staleness:
        ahead.add(progress)
    progress.update += 1
    progress.position = rolled.position
    progress.without_signal = 0 if any(group.has_signal for group in groups) else progress.without_signal + 1
    numbers = statistics_of(groups, samples, results, timed.seconds)
    numbers |= {**told, "learning_rate": learning_rate}
    if progress.first_entropy is None and results:
        progress.first_entropy = numbers["entropy"]
    credited = parts.credit.of_steps(used[: settings.questions])
    shown, trees = shown_samples(groups, samples, credited), shown_trees(groups, samples, credited)
    return UpdateDone(progress.update, progress.position, numbers, timed.seconds, parts.peak_bytes(), shown, trees)


def _learned(
    parts: TrainingParts,
    batches: Sequence[Sequence[Sample]],
    learning_rate: float,
    on_policy: bool,
    ahead: Ahead,
    progress: Progress,
    timed: TimedPhases,
) -> list[UpdateResult]:
    """Make an optimizer step on each batch. Where rollouts may be older, those of a coming update are made meanwhile.

    The seconds of the update are then those that were waited for it after that.
    """
    if not parts.staleness:
        with timed("update"):
            return [parts.update(batch, learning_rate, on_policy) for batch in batches]
    with ThreadPoolExecutor(1, thread_name_prefix="palmette-update") as thread:
        learning = thread.submit(lambda: [parts.update(batch, learning_rate, on_policy) for batch in batches])
        ahead.add(progress)
        with timed("update"):
            return learning.result()


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


def _recorded(parts: TrainingParts, event: "Shown") -> "Shown":
    parts.record(event)
    return event


Shown = UpdateDone | Evaluated | Noticed
