"""A sweep's cells as one row for each strategy at each width, seeds pooled."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from palmette.search.summary import Accuracy, Summary

VOTES = ("best", "majority", "weighted")
COLUMNS = (
    "strategy", "width", "seeds", "questions",
    *(f"{vote}{part}" for vote in VOTES for part in ("", "_low", "_high")),
    "single", "any", "generated_tokens", "mean_kv_tokens", "peak_kv_tokens", "mean_kv_bytes", "peak_kv_bytes",
    "policy_calls", "reward_calls", "seconds", "questions_per_second",
)  # fmt: skip
SHOWN = {
    "strategy": "strategy", "width": "width", "single": "alone", "best": "best", "majority": "majority",
    "weighted": "weighted", "generated_tokens": "tokens", "mean_kv_tokens": "KV", "peak_kv_tokens": "peak",
    "questions_per_second": "q/s",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One strategy at one width: every column's value."""

    values: dict[str, float | str]

    def shown(self, column: str) -> str:
        """Return a value as tables show it."""
        value = self.values[column]
        if isinstance(value, str) or column in ("width", "seeds", "questions"):
            return str(value)
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"


def rows(summaries: Iterable[Summary]) -> list[Row]:
    """Pool the runs of each strategy at each width, in the order they come in."""
    groups: dict[tuple[str, int], list[Summary]] = {}
    for summary in summaries:
        search = summary.config["search"]
        groups.setdefault((str(search["strategy"]), int(search["width"])), []).append(summary)
    return [_row(strategy, width, group) for (strategy, width), group in groups.items()]


def as_csv(table: Iterable[Row]) -> str:
    """Return every column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values for row in table)
    return text.getvalue()


def as_markdown(table: Iterable[Row]) -> str:
    """Return the columns that people compare."""
    lines = [f"| {' | '.join(SHOWN.values())} |", "|---" + "|---:" * (len(SHOWN) - 1) + "|"]
    lines += [f"| {' | '.join(row.shown(column) for column in SHOWN)} |" for row in table]
    return "\n".join(lines) + "\n"


def _row(strategy: str, width: int, group: list[Summary]) -> Row:
    questions = sum(summary.questions for summary in group)
    seconds = sum(summary.seconds for summary in group)
    bytes_per_token = max(summary.kv_bytes_per_token for summary in group)

    def mean(value: Callable[[Summary], float]) -> float:
        return sum(value(summary) * summary.questions for summary in group) / max(1, questions)

    kv_tokens = mean(lambda summary: summary.mean_kv_tokens)
    peak = max(summary.peak_kv_tokens for summary in group)
    values: dict[str, float | str] = {
        "strategy": strategy,
        "width": width,
        "seeds": len(group),
        "questions": questions,
        "single": _pool([summary.single for summary in group]).share,
        "any": _pool([summary.any_leaf for summary in group]).share,
        "generated_tokens": mean(lambda summary: summary.generated_tokens),
        "mean_kv_tokens": kv_tokens,
        "peak_kv_tokens": peak,
        "mean_kv_bytes": kv_tokens * bytes_per_token,
        "peak_kv_bytes": peak * bytes_per_token,
        "policy_calls": sum(summary.policy_calls for summary in group),
        "reward_calls": sum(summary.reward_calls for summary in group),
        "seconds": seconds,
        "questions_per_second": questions / seconds if seconds else 0.0,
    }
    for vote in VOTES:
        pooled = _pool([summary.votes[vote] for summary in group if vote in summary.votes])
        values |= {vote: pooled.share, f"{vote}_low": pooled.interval[0], f"{vote}_high": pooled.interval[1]}
    return Row(values)


def _pool(parts: list[Accuracy]) -> Accuracy:
    return Accuracy(sum(part.correct for part in parts), sum(part.questions for part in parts), {})
