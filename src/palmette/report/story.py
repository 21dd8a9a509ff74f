"""From a run's events to what its page shows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palmette.config import Fold
from palmette.events import Event, NodeRecord, QuestionFinished, QuestionStarted, RunStarted, WaveDone, read_events
from palmette.report.table import summary_values
from palmette.search.answer import fold
from palmette.search.summary import summarize

MOST_QUESTIONS = 200
MOST_SOLUTIONS = 6


@dataclass
class _Story:
    """One question as its events tell it."""

    started: QuestionStarted
    nodes: dict[int, NodeRecord] = field(default_factory=dict)
    finished: QuestionFinished | None = None


def run_story(folder: Path) -> dict[str, Any]:
    """Return a run as JSON values: its summary, and its first finished questions with their best solutions."""
    events = list(read_events(folder))
    values = summary_values(summarize(events))
    how: Fold = values["config"]["search"]["fold"]
    stories = [story for story in _collect(events).values() if story.finished]
    values["name"] = folder.name
    values["stories"] = [_question(story, how) for story in stories[:MOST_QUESTIONS]]
    return values


def _collect(events: Iterable[Event]) -> dict[str, _Story]:
    stories: dict[str, _Story] = {}
    for event in events:
        if isinstance(event, RunStarted):
            stories.clear()
        elif isinstance(event, QuestionStarted):
            stories[event.question] = _Story(event)
        elif isinstance(event, WaveDone):
            stories[event.question].nodes.update((node.id, node) for node in event.nodes)
        elif isinstance(event, QuestionFinished):
            stories[event.question].finished = event
    return stories


def _question(story: _Story, how: Fold) -> dict[str, Any]:
    assert story.finished is not None
    parents = {node.parent for node in story.nodes.values()}
    leaves = [_solution(story.nodes, node, how) for node in story.nodes.values() if node.id not in parents]
    leaves.sort(key=lambda leaf: -leaf["score"])
    return {
        "id": story.started.question,
        "prompt": story.started.prompt,
        "reference": story.started.reference,
        "choices": {vote: [choice.answer, choice.outcome] for vote, choice in story.finished.choices.items()},
        "tokens": story.finished.generated_tokens,
        "kv": story.finished.peak_kv_tokens,
        "unshared": story.finished.peak_separate_kv_tokens,
        "leaves": len(leaves),
        "solutions": leaves[:MOST_SOLUTIONS],
    }


def _solution(nodes: dict[int, NodeRecord], leaf: NodeRecord, how: Fold) -> dict[str, Any]:
    steps: list[tuple[str, float | None]] = []
    node: NodeRecord | None = leaf
    while node is not None:
        steps.append((node.text, node.score))
        node = nodes.get(node.parent)
    steps.reverse()
    folded = fold([score for _, score in steps if score is not None], how)
    return {"node": leaf.id, "finished": leaf.finished, "score": folded, "steps": steps}
