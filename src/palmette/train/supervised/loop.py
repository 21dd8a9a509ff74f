"""The loop of training on rows: update, test on rows held out, write a checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from palmette.events import Event, RowsTested, UpdateDone
from palmette.train.phases import TimedPhases
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult


@dataclass
class RowProgress:
    """What a run has to remember beside weights and optimizer state: how many updates are done."""

    update: int = 0


@dataclass(frozen=True)
class RowParts:
    """What the loop calls. `batches` are the rows of each update, `samples` returns the samples of rows.

    `learning_rate` returns that of the next update, given the number of updates done; `update` makes one optimizer step
    with it. `test` measures the model on rows that were held out, None if there are none; `metric` is what of a test
    checkpoints are compared by, the larger the better. `phase` meters a block under a name.
    """

    batches: Sequence[Sequence[int]]
    epochs: int
    samples: Callable[[Sequence[int]], list[Sample]]
    learning_rate: Callable[[int], float]
    update: Callable[[Sequence[Sample], float], UpdateResult]
    test: Callable[[int], RowsTested] | None
    metric: Callable[[RowsTested], float]
    checkpoint: Callable[[RowProgress, float | None], Event]
    phase: Callable[[str], AbstractContextManager[None]]
    peak_bytes: Callable[[], dict[str, int]]
    record: Callable[[Event], None]


def train_on_rows(
    parts: RowParts, progress: RowProgress, *, eval_every: int, checkpoint_every: int
) -> Iterator[UpdateDone | RowsTested]:
    """Train to the last update, from where `progress` is; yield updates and tests.

    Tests are made before the first update, every `eval_every` updates (0: never) and after the last. What an update is
    made of depends on its number alone: a run that goes on from a checkpoint gives the weights of one that was never
    stopped.
    """
    if parts.test is not None and not progress.update:
        yield _recorded(parts, parts.test(0))
    while progress.update < len(parts.batches):
        yield _recorded(parts, _next_update(parts, progress))
        is_last = progress.update == len(parts.batches)
        metric = None
        if parts.test is not None and (is_last or (eval_every and progress.update % eval_every == 0)):
            tested = parts.test(progress.update)
            metric = parts.metric(tested)
            yield _recorded(parts, tested)
        if metric is not None or is_last or progress.update % checkpoint_every == 0:
            parts.record(parts.checkpoint(progress, metric))


def _next_update(parts: RowParts, progress: RowProgress) -> UpdateDone:
    rows = parts.batches[progress.update]
    samples = parts.samples(rows)
    learning_rate = parts.learning_rate(progress.update)
    timed = TimedPhases(parts.phase)
    with timed("update"):
        result = parts.update(samples, learning_rate)
    progress.update += 1
    tokens = float(sum(sample.fed_tokens for sample in samples))
    numbers = {
        "loss": result.loss,
        "gradient_norm": result.gradient_norm,
        "learning_rate": learning_rate,
        "epoch": parts.epochs * progress.update / len(parts.batches),
        "rows": float(len(rows)),
        "learned_tokens": float(result.response_tokens),
        "fed_tokens": tokens,
        "tokens_per_second": tokens / max(timed.seconds["update"], 1e-3),
    }
    return UpdateDone(progress.update, progress.update, numbers, timed.seconds, parts.peak_bytes())


def _recorded(parts: RowParts, event: UpdateDone | RowsTested) -> UpdateDone | RowsTested:
    parts.record(event)
    return event
