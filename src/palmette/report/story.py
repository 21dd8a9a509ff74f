"""From a run's events to what its page shows."""

from pathlib import Path
from typing import Any

from palmette.config import Fold, check_config
from palmette.events import FILE_NAME, read_events
from palmette.report.table import summary_values
from palmette.search.answer import fold
from palmette.search.replay import Replay, replay
from palmette.search.summary import summarize
from palmette.tree import Tree

MOST_QUESTIONS = 200
MOST_SOLUTIONS = 6


def run_story(folder: Path) -> dict[str, Any]:
    """Return a run as JSON values: its summary, and its first finished questions with their best solutions."""
    events = list(read_events(folder))
    values = summary_values(summarize(events))
    how = check_config(values["config"], {}, str(folder / FILE_NAME)).search.fold
    told = [one for one in replay(events).values() if one.finished]
    values["name"] = folder.name
    values["stories"] = [_question(one, how) for one in told[:MOST_QUESTIONS]]
    return values


def _question(one: Replay, how: Fold) -> dict[str, Any]:
    assert one.finished is not None
    leaves = one.tree.leaves()
    solutions = sorted((_solution(one.tree, leaf, how) for leaf in leaves), key=lambda solution: -solution["score"])
    return {
        "id": one.started.question,
        "prompt": one.started.prompt,
        "reference": one.started.reference,
        "choices": {vote: [choice.answer, choice.outcome] for vote, choice in one.finished.choices.items()},
        "tokens": one.finished.generated_tokens,
        "kv": one.finished.peak_kv_tokens,
        "unshared": one.finished.peak_separate_kv_tokens,
        "leaves": len(leaves),
        "solutions": solutions[:MOST_SOLUTIONS],
    }


def _solution(tree: Tree, leaf: int, how: Fold) -> dict[str, Any]:
    return {
        "node": leaf,
        "finished": tree.nodes[leaf].finished,
        "score": fold(tree.scores(leaf), how),
        "steps": [(step.text, step.score) for step in tree.steps(leaf)],
    }
