"""The numbers of a training run while it runs: a live table on a terminal, a line for each update anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from palmette.events import Evaluated, Noticed, RowsTested, UpdateDone
from palmette.units import count_of, format_bytes, format_count, format_seconds, one_line

_SHOWN_UPDATES = 12
Columns = Mapping[str, tuple[str, Callable[[float], str]]]
"""Statistics that are shown by name, each with its heading and how its number is written."""

COLUMNS: Columns = {
    "reward": ("reward", "{:.3f}".format),
    "signal_share": ("no signal", lambda share: f"{1 - share:.0%}"),
    "kl": ("KL", "{:.4f}".format),
    "entropy": ("entropy", "{:.3f}".format),
    "response_tokens": ("tokens", "{:.0f}".format),
    "cut_share": ("cut", "{:.0%}".format),
    "clipped_share": ("clipped", "{:.1%}".format),
    "ratio": ("ratio", "{:.5f}".format),
    "gradient_norm": ("gradient", "{:.3g}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
}
ROW_COLUMNS: Columns = {
    "epoch": ("epoch", "{:.2f}".format),
    "loss": ("loss", "{:.4f}".format),
    "gradient_norm": ("gradient", "{:.3g}".format),
    "learning_rate": ("rate", "{:.3g}".format),
    "rows": ("rows", "{:.0f}".format),
    "learned_tokens": ("learned", "{:.0f}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
}
"""Those of training on rows."""


class TrainingTable:
    """Shows updates, evaluations and notices as they come. Its first call starts the clock."""

    def __init__(self, updates: int, columns: Columns = COLUMNS) -> None:
        self.updates = updates
        self._columns = columns
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False)
        self._shown: list[UpdateDone] = []
        self._evaluated: list[Evaluated] = []
        self._tested: dict[str, float] = {}
        self._noticed: dict[str, str] = {}
        self._begun = time.monotonic()
        self._first: int | None = None
        self._written = 0
        self._drawn = 0.0

    def __enter__(self) -> "TrainingTable":
        if self._console.is_terminal:
            self._live.start()
        self._begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def tokens(self, count: int) -> None:
        """Count tokens that the policy has written."""
        self._written += count
        self._draw()

    def show(self, event: UpdateDone | Evaluated | RowsTested | Noticed) -> None:
        """Show an event of the run; a notice of one kind is told once until its text changes."""
        if isinstance(event, Noticed):
            if event.about not in self._noticed:
                self._print(f"update {event.update}: {one_line(event.text, 300)}")
            self._noticed[event.about] = event.text
        elif isinstance(event, RowsTested):
            self._tested = event.numbers
            told = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in event.numbers.items())
            rows = f"{event.rows} rows, {format_seconds(event.seconds)}"
            self._print(f"update {event.update}: on rows held out: {told} ({rows})")
        elif isinstance(event, Evaluated):
            self._evaluated.append(event)
            self._print(
                f"update {event.update}: test {event.single:.1%} of responses correct (± {event.error:.1%}), "
                f"{event.elected:.1%} elected, {event.questions} questions, {format_seconds(event.seconds)}"
            )
        else:
            self._first = event.update - 1 if self._first is None else self._first
            self._shown.append(event)
            del self._shown[:-_SHOWN_UPDATES]
            if not self._console.is_terminal:
                print(self._line(event), file=sys.stderr, flush=True)
        self._draw(force=True)

    def recall(self, event: object) -> None:
        """Take an event that was recorded earlier, for the summary; nothing is shown."""
        if isinstance(event, UpdateDone):
            self._shown = [event]
        elif isinstance(event, Evaluated):
            self._evaluated = [event]
        elif isinstance(event, RowsTested):
            self._tested = event.numbers

    @property
    def last_update(self) -> int | None:
        """The number of the last update shown, None before the first."""
        return self._shown[-1].update if self._shown else None

    def summary(self) -> dict[str, float]:
        """Return the last statistics and the last evaluation."""
        last = self._shown[-1].numbers if self._shown else {}
        tested = {"test_single": self._evaluated[-1].single} if self._evaluated else {}
        return {**last, **tested, **{f"test_{name}": value for name, value in self._tested.items()}}

    def _print(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _draw(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._console.is_terminal and (force or now - self._drawn > 0.25):
            self._drawn = now
            self._live.update(Group(self._table(), Text(self._status(now))), refresh=True)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("update", justify="right")
        for heading, _ in self._columns.values():
            table.add_column(heading, justify="right")
        table.add_column("seconds", justify="right")
        for event in self._shown:
            table.add_row(f"{event.update}", *self._cells(event), _seconds(event))
        return table

    def _status(self, now: float) -> str:
        done = self._shown[-1].update if self._shown else 0
        seconds = max(now - self._begun, 1e-9)
        rate = f", {format_count(self._written)} tokens, {self._written / seconds:,.0f}/s" if self._written else ""
        held = f"\nheld at most: {_peaks(self._shown[-1])}" if self._shown else ""
        return f"{done} of {self.updates} updates{rate}{self._left(now)}{held}"

    def _left(self, now: float) -> str:
        if not self._shown or self._first is None:
            return ""
        done = self._shown[-1].update
        each = (now - self._begun) / max(1, done - self._first)
        return f", {format_seconds((self.updates - done) * each)} left"

    def _line(self, event: UpdateDone) -> str:
        cells = self._cells(event)
        named = [f"{heading} {cell}" for (heading, _), cell in zip(self._columns.values(), cells, strict=True)]
        left = self._left(time.monotonic())
        return (
            f"update {event.update}/{self.updates}: {', '.join(named)}, {_seconds(event)}{left}; held {_peaks(event)}"
        )

    def _cells(self, event: UpdateDone) -> list[str]:
        numbers = event.numbers
        return [written(numbers[name]) if name in numbers else "-" for name, (_, written) in self._columns.items()]


def _seconds(event: UpdateDone) -> str:
    return format_seconds(sum(event.seconds.values()))


def _peaks(event: UpdateDone) -> str:
    return ", ".join(f"{name} {format_bytes(peak)}" for name, peak in event.peak_bytes.items())


def batch_lines(done: UpdateDone) -> Iterator[str]:
    """Yield the responses of an update as text, each with its reward and advantage."""
    prompt = None
    for sample in done.samples:
        if sample.prompt != prompt:
            prompt = sample.prompt
            yield f"question {one_line(sample.question, 80)}: {one_line(prompt, 300)}"
        reward = "none" if sample.reward is None else f"{sample.reward:.3f}"
        advantage = "not learned from" if sample.advantage is None else f"advantage {sample.advantage:+.3f}"
        cut = ", cut at the limit" if sample.is_cut else ""
        yield f"  reward {reward}, {advantage}{cut}: {one_line(sample.text, 300)}"


def cost_lines(done: UpdateDone, updates: int) -> Iterator[str]:
    """Yield what an update took, phase by phase, and what so many of them would take."""
    numbers, seconds = done.numbers, sum(done.seconds.values())
    yield (
        f"one update: {format_count(int(numbers['generated_tokens']))} tokens generated, "
        f"{count_of(int(numbers['samples']), 'sample')} learned from, {format_seconds(seconds)} in all"
    )
    for name, own in done.seconds.items():
        peak = f", at most {format_bytes(done.peak_bytes[name])} held" if name in done.peak_bytes else ""
        yield f"  {name}: {format_seconds(own)}{peak}"
    whole = format_seconds(updates * seconds)
    yield f"all {count_of(updates, 'update')}: about {whole}; evaluations and checkpoints come on top"
