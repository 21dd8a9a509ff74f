"""Shows the summary of a run as a terminal table or as JSON values."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from palmette.search.summary import Accuracy, Summary
from palmette.units import one_line

OUTCOMES = ("correct", "wrong", "unparseable", "timed_out")


def answers_table(summary: Summary) -> Table:
    """Return a table of accuracies: one leaf taken at random, every vote, and any leaf (a perfect vote)."""
    search = summary.config["search"]
    title = f"{search['strategy']}, width {search['width']}, {summary.questions} questions"
    table = plain_table("answer", "accuracy", "95% interval", *(outcome.replace("_", " ") for outcome in OUTCOMES))
    table.title = plain_text(title)
    table.add_row("one leaf", *_shares(summary.single), *[""] * len(OUTCOMES), style="dim")
    for vote, accuracy in summary.votes.items():
        counts = [str(accuracy.outcomes.get(outcome, 0)) for outcome in OUTCOMES]
        table.add_row(plain_text(vote), *_shares(accuracy), *counts)
    table.add_row("any leaf", *_shares(summary.any_leaf), *[""] * len(OUTCOMES), style="dim")
    return table


def plain_text(text: str) -> Text:
    """Return a text for a table as it is: brackets are no markup, and nothing in it can draw on the terminal."""
    return Text(one_line(text))


def plain_table(*headings: str) -> Table:
    """Return an empty table without a frame; the first column is aligned left, the others right."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title_justify="left", caption_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def summary_values(summary: Summary) -> dict[str, Any]:
    """Return the summary as JSON values. `results` are the same for the same seed, `cost` is not."""
    return {
        "results": {
            "questions": summary.questions,
            "votes": {vote: accuracy_values(accuracy) for vote, accuracy in summary.votes.items()},
            "single": accuracy_values(summary.single),
            "any": accuracy_values(summary.any_leaf),
            "generated_tokens": summary.generated_tokens,
            "mean_kv_tokens": summary.mean_kv_tokens,
            "peak_kv_tokens": summary.peak_kv_tokens,
            "peak_separate_kv_tokens": summary.peak_separate_kv_tokens,
            "kv_bytes_per_token": summary.kv_bytes_per_token,
        },
        "cost": {
            "seconds": summary.seconds,
            "policy_calls": summary.policy_calls,
            "reward_calls": summary.reward_calls,
            "server_hit_share": summary.server_hit_share,
            "server_preemptions": summary.server_preemptions,
        },
        "config": summary.config,
    }


def accuracy_values(accuracy: Accuracy) -> dict[str, Any]:
    """Return an accuracy with its 95% interval and outcomes as JSON values."""
    low, high = accuracy.interval
    return {"accuracy": accuracy.share, "low": low, "high": high, "outcomes": accuracy.outcomes}


def _shares(accuracy: Accuracy) -> tuple[str, str]:
    low, high = accuracy.interval
    return f"{accuracy.share:.3f}", f"{low:.3f} - {high:.3f}"
