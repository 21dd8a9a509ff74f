"""Trees rebuilt from a run's events."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from palmette.errors import RunError
from palmette.events import Event, QuestionFinished, QuestionStarted, WaveDone
from palmette.tree import Node, Tree


@dataclass
class Replay:
    """One question as its events tell it; `finished` is None while it has not ended."""

    started: QuestionStarted
    tree: Tree
    waves: list[WaveDone] = field(default_factory=list)
    finished: QuestionFinished | None = None


def replay(events: Iterable[Event]) -> dict[str, Replay]:
    """Return every question by its id, each in its last attempt.

    Runs of earlier versions only counted the prompt's tokens: there each one is 0.
    """
    told: dict[str, Replay] = {}
    for event in events:
        if isinstance(event, QuestionStarted):
            ids = event.prompt_token_ids
            told[event.question] = Replay(event, Tree(ids if ids else (0,) * event.prompt_tokens))
        elif isinstance(event, WaveDone):
            one = _known(told, event.question)
            _grow(one.tree, event)
            one.waves.append(event)
        elif isinstance(event, QuestionFinished):
            one = _known(told, event.question)
            one.finished = event
            _judge(one.tree, event)
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
        grown.state = "finished" if node.finished else "pruned"
        tree.nodes[node.parent].state = "kept"
    tree.temperature = wave.temperature
    for leaf, label in wave.clusters.items():
        _node(tree, leaf, wave.question).cluster = label
    for parent in wave.children:
        _node(tree, parent, wave.question).state = "kept"


def _judge(tree: Tree, event: QuestionFinished) -> None:
    for judged in event.leaves:
        node = _node(tree, judged.leaf, event.question)
        node.outcome, node.reward = judged.outcome, judged.reward
        if not node.finished:
            node.state = "stopped"


def _node(tree: Tree, node: int, question: str) -> Node:
    if not 0 <= node < len(tree.nodes):
        raise RunError(f"the run's events speak of node {node} of question {question!r}, which they do not have")
    return tree.nodes[node]
