"""What `palmette train` shows while it runs: a line for each update, or a live table with the memory of each phase."""

import io

import pytest
from rich.console import Console

from palmette.commands.training.training_table import TrainingTable, batch_lines, cost_lines
from palmette.events import Evaluated, Noticed, ShownSample, UpdateDone

pytestmark = pytest.mark.unit

NUMBERS = {
    "reward": 0.25, "signal_share": 0.75, "kl": 0.0123, "entropy": 0.5, "response_tokens": 96.0, "cut_share": 0.1,
    "clipped_share": 0.02, "ratio": 1.00001, "gradient_norm": 0.3, "tokens_per_second": 1234.0,
    "generated_tokens": 3000.0, "samples": 16.0,
}  # fmt: skip
DONE = UpdateDone(
    1, 4, NUMBERS, {"rollout": 2.0, "update": 4.0}, {"rollout": 500 * 2**20, "update": 600 * 2**20},
    (ShownSample("q", "2+2", "= 4", 1.0, 0.5, False), ShownSample("q", "2+2", "= 5", None, None, True)),
)  # fmt: skip
ASKED = ("no signal", "KL", "entropy", "tokens", "cut", "clipped", "ratio", "tokens/s", "reward")


def test_a_line_has_every_number_the_memory_of_each_phase_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingTable(10) as table:
        table.show(DONE)
        table.show(Noticed(1, "cut", "30% were cut"))
        table.show(Noticed(2, "cut", "31% were cut"))
    line, *notices = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "update 1/10: reward 0.250, no signal 25%, KL 0.0123, entropy 0.500, tokens 96, cut 10%, clipped 2.0%, "
        "ratio 1.00001, gradient 0.3, tokens/s 1,234, 6.0 s, "
    )
    assert line.endswith("left; held rollout 500.0 MiB, update 600.0 MiB")
    assert notices == ["update 1: 30% were cut"]  # The same thing is told once.


def drawn_on_a_terminal() -> tuple[TrainingTable, str]:
    """Return a table that has shown one update, and all that it wrote."""
    table, written = TrainingTable(10), io.StringIO()
    table._console = table._live.console = Console(file=written, force_terminal=True, width=160)
    with table:
        table.show(DONE)
    return table, written.getvalue()


def test_the_live_table_has_the_same_numbers() -> None:
    _, drawn = drawn_on_a_terminal()
    for told in (*ASKED, "0.250", "25%", "1.00001", "1,234", "left", "rollout 500.0 MiB, update 600.0 MiB"):
        assert told in drawn


def test_the_last_table_stays_on_the_screen() -> None:
    table, drawn = drawn_on_a_terminal()
    erased = "\x1b[2K"
    assert erased not in drawn[drawn.rindex("held at most") :]
    assert table.last_update == 1


def test_the_summary_of_a_finished_run_is_recalled_from_its_events(capsys: pytest.CaptureFixture[str]) -> None:
    shown, recalled = TrainingTable(10), TrainingTable(10)
    events: list[Evaluated | UpdateDone] = [
        Evaluated(0, 5, 0.25, 0.5, 0.1, 100, 1.0),
        DONE,
        Evaluated(1, 5, 0.75, 0.5, 0.1, 100, 1.0),
    ]
    for event in events:
        shown.show(event)
    capsys.readouterr()
    for event in events:
        recalled.recall(event)
    assert recalled.summary() == shown.summary() == {**NUMBERS, "test_single": 0.75}
    assert capsys.readouterr().err == ""


def test_a_dry_run_shows_the_batch_and_what_all_updates_would_take() -> None:
    assert list(batch_lines(DONE)) == [
        "question q: 2+2",
        "  reward 1.000, advantage +0.500: = 4",
        "  reward none, not learned from, cut at the limit: = 5",
    ]
    assert list(cost_lines(DONE, 100)) == [
        "one update: 3,000 tokens generated, 16 samples learned from, 6.0 s in all",
        "  rollout: 2.0 s, at most 500.0 MiB held",
        "  update: 4.0 s, at most 600.0 MiB held",
        "all 100 updates: about 10 min 00 s; evaluations and checkpoints come on top",
    ]
