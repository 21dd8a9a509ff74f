"""Rows of a comparison: one for each strategy at each width, with the runs of all seeds pooled; CSV, Markdown."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palmette.search.curve import Point, at_tokens
from palmette.search.summary import Accuracy, Summary

VOTES = ("best", "majority", "weighted")
COLUMNS = (
    "strategy", "width", "seeds", "questions",
    *(f"{vote}{part}" for vote in VOTES for part in ("", "_low", "_high")),
    "single", "any", "bon_same_tokens", "generated_tokens", "mean_kv_tokens", "peak_kv_tokens",
    "peak_separate_kv_tokens", "mean_kv_bytes", "peak_kv_bytes", "policy_calls", "reward_calls", "seconds",
    "questions_per_second", "server_hit_share", "server_preemptions",
)  # fmt: skip
SHOWN = {
    "strategy": "strategy", "width": "width", "single": "one leaf", "best": "best", "majority": "majority",
    "weighted": "weighted", "bon_same_tokens": "BoN", "generated_tokens": "tokens", "mean_kv_tokens": "KV",
    "peak_kv_tokens": "peak",
}  # fmt: skip
CAPTION = (
    "accuracy of one random leaf, of each vote, and of best_of_n with the row's\n"
    "tokens (BoN, blank beyond its range); tokens written; KV held (mean, peak)"
)
_PARTS = ("search", "task", "policy", "reward", "embedder")
_CELL = ("strategy", "width")
_SHARED = ("depth", "step_tokens", "total_tokens", "aggregate", "vote")
Curves = Mapping[str, Sequence[Point]]
"""Best-of-N curves by the `comparison_key` of their runs."""


@dataclass(frozen=True)
class Row:
    """One strategy at one width: the value of every column, and the vote of its runs."""

    values: dict[str, float | str | None]
    vote: str

    def shown(self, column: str) -> str:
        """Return the value of a column as text for tables."""
        value = self.values[column]
        if value is None:
            return ""
        if isinstance(value, str) or column in ("width", "seeds", "questions"):
            return str(value)
        if abs(value) < 10:
            return f"{value:.3f}"
        return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}k"

    @property
    def name(self) -> str:
        """The strategy and the width, as `beam 16`."""
        return f"{self.values['strategy']} {self.values['width']}"


def pooled_rows(summaries: Iterable[Summary], curves: Curves) -> list[Row]:
    """Pool the runs that differ in their seeds alone; return one row for each group, in the order of their first runs.

    If a seed occurs twice in a group, the run with more questions counts. Rows of the same strategy and width have the
    settings in which they differ in their names.
    """
    groups: dict[str, dict[int, Summary]] = {}
    for summary in summaries:
        same = {key: value for key, value in summary.config.items() if key not in ("seed", "out", "memory", "servers")}
        seeds = groups.setdefault(json.dumps(same, sort_keys=True), {})
        known = seeds.get(summary.config["seed"])
        if known is None or known.questions < summary.questions:
            seeds[summary.config["seed"]] = summary
    pooled = [list(seeds.values()) for seeds in groups.values()]
    names = _names([group[0].config for group in pooled])
    return [
        _row(group, name, curves.get(comparison_key(group[0].config), ()))
        for group, name in zip(pooled, names, strict=True)
    ]


def _names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each group: its strategy, and settings that tell groups of one strategy and width apart."""
    names = []
    flat = [
        {f"{part}.{key}": value for part in _PARTS for key, value in config.get(part, {}).items()} for config in configs
    ]
    for config in flat:
        similar = [other for other in flat if all(other[f"search.{key}"] == config[f"search.{key}"] for key in _CELL)]
        differing = [key for key in config if any(other.get(key) != config[key] for other in similar)]
        settings = [
            f"{key.removeprefix('search.')}={'none' if config[key] is None else config[key]}" for key in differing
        ]
        names.append(" ".join([str(config["search.strategy"]), *settings]))
    return names


def comparison_key(config: Mapping[str, Any]) -> str:
    """Return what runs must have in common to be compared with best_of_n: task, models, limits, aggregate and vote."""
    search = {key: value for key, value in config["search"].items() if key in _SHARED}
    return json.dumps([search, *(config.get(part) for part in ("task", "policy", "reward"))], sort_keys=True)


def as_csv(table: Iterable[Row]) -> str:
    """Return all columns of the rows as CSV, with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values for row in table)
    return text.getvalue()


def as_markdown(table: Iterable[Row]) -> str:
    """Return the columns `SHOWN` of the rows as a Markdown table."""
    lines = [f"| {' | '.join(SHOWN.values())} |", "|---" + "|---:" * (len(SHOWN) - 1) + "|"]
    lines += [f"| {' | '.join(row.shown(column) for column in SHOWN)} |" for row in table]
    return "\n".join(lines) + "\n"


def _row(group: list[Summary], name: str, points: Sequence[Point]) -> Row:
    search = group[0].config["search"]
    questions = sum(summary.questions for summary in group)
    seconds = sum(summary.seconds for summary in group)
    bytes_per_token = max(summary.kv_bytes_per_token for summary in group)

    def mean(value: Callable[[Summary], float]) -> float:
        return sum(value(summary) * summary.questions for summary in group) / max(1, questions)

    together = replace(group[0], servers=tuple(use for summary in group for use in summary.servers))
    kv_tokens = mean(lambda summary: summary.mean_kv_tokens)
    peak = max(summary.peak_kv_tokens for summary in group)
    generated_tokens = mean(lambda summary: summary.generated_tokens)
    values: dict[str, float | str | None] = {
        "strategy": name,
        "width": int(search["width"]),
        "seeds": len(group),
        "questions": questions,
        "single": _pool([summary.single for summary in group]).share,
        "any": _pool([summary.any_leaf for summary in group]).share,
        "bon_same_tokens": at_tokens(points, generated_tokens),
        "generated_tokens": generated_tokens,
        "mean_kv_tokens": kv_tokens,
        "peak_kv_tokens": peak,
        "peak_separate_kv_tokens": max(summary.peak_separate_kv_tokens for summary in group),
        "mean_kv_bytes": kv_tokens * bytes_per_token,
        "peak_kv_bytes": peak * bytes_per_token,
        "policy_calls": sum(summary.policy_calls for summary in group),
        "reward_calls": sum(summary.reward_calls for summary in group),
        "seconds": seconds,
        "questions_per_second": sum(summary.timed_questions for summary in group) / seconds if seconds else 0.0,
        "server_hit_share": together.server_hit_share,
        "server_preemptions": together.server_preemptions,
    }
    for vote in VOTES:
        pooled = _pool([summary.votes[vote] for summary in group if vote in summary.votes])
        values |= {vote: pooled.share, f"{vote}_low": pooled.interval[0], f"{vote}_high": pooled.interval[1]}
    return Row(values, str(search["vote"]))


def _pool(parts: list[Accuracy]) -> Accuracy:
    return Accuracy(sum(part.correct for part in parts), sum(part.questions for part in parts), {})
