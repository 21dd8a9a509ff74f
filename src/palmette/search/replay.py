"""Trees rebuilt from a run's events."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from palmette.errors import RunError
from palmette.events import Event, QuestionFinished, QuestionStarted, WaveDone
from palmette.tree import Tree


@dataclass
class Replay:
    """One question as its events tell it; `finished` is None while it has not ended."""

    started: QuestionStarted
    tree: Tree
    waves: list[WaveDone] = field(default_factory=list)
    finished: QuestionFinished | None = None


def replay(events: Iterable[Event]) -> dict[str, Replay]:
    """Return every question by its id, each in its last attempt. The prompt's tokens are counted, not known."""
    told: dict[str, Replay] = {}
    for event in events:
        if isinstance(event, QuestionStarted):
            told[event.question] = Replay(event, Tree((0,) * event.prompt_tokens))
        elif isinstance(event, WaveDone):
            one = _known(told, event.question)
            _grow(one.tree, event)
            one.waves.append(event)
        elif isinstance(event, QuestionFinished):
            _known(told, event.question).finished = event
    return told


def _known(told: dict[str, Replay], question: str) -> Replay:
    if question not in told:
        raise RunError(f"the run's events speak of question {question!r} before they start it")
    return told[question]


def _grow(tree: Tree, wave: WaveDone) -> None:
    for node in wave.nodes:
        if node.id != len(tree.nodes) or not 0 <= node.parent < node.id or tree.nodes[node.parent].finished:
            raise RunError(f"the run's events have a gap: node {node.id} of question {wave.question!r} has no place")
        grown = tree.add(node.parent, node.tokens, node.text, node.logprobs, finished=node.finished)
        grown.score = node.score
