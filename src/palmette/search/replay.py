"""Rebuilds the trees of a run from its events."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from palmette.errors import RunError
from palmette.events import Event, QuestionFinished, QuestionStarted, WaveDone
from palmette.tasks.task import Question
from palmette.tree import Node, Tree


@dataclass
class Replay:
    """One question rebuilt from its events. `finished` is None if the run was stopped before the question ended."""

    started: QuestionStarted
    tree: Tree
    waves: list[WaveDone] = field(default_factory=list)
    finished: QuestionFinished | None = None

    def question(self) -> Question:
        """Return the question as far as events record it: its last message and its reference."""
        asked = ({"role": "user", "content": self.started.prompt},)
        return Question(self.started.question, asked, self.started.reference)


def replay(events: Iterable[Event]) -> dict[str, Replay]:
    """Return every question by its id. If a question was started more than once, only the last attempt is kept.

    Runs of earlier versions recorded how many tokens the prompt has, but not which: in those trees the place of each
    stands for it. Raises RunError for events that contradict each other.
    """
    replays: dict[str, Replay] = {}
    for event in events:
        if isinstance(event, QuestionStarted):
            replays[event.question] = Replay(event, Tree(_prompt(event)))
        elif isinstance(event, WaveDone):
            question = _started(replays, event.question)
            _add_wave(question.tree, event)
            question.waves.append(event)
        elif isinstance(event, QuestionFinished):
            question = _started(replays, event.question)
            question.finished = event
            _add_verdicts(question.tree, event)
    return replays


def _started(replays: dict[str, Replay], question: str) -> Replay:
    if question not in replays:
        raise RunError(f"the run's events are damaged: they mention question {question!r} before they start it")
    return replays[question]


def _prompt(event: QuestionStarted) -> Sequence[int]:
    ids = event.prompt_token_ids
    if ids and len(ids) != event.prompt_tokens:
        raise RunError(
            f"the run's events are damaged: question {event.question!r} has {len(ids)} prompt tokens, not the "
            f"{event.prompt_tokens} that it counts"
        )
    return ids or range(event.prompt_tokens)  # A range holds no memory, however large a number a file names.


def _add_wave(tree: Tree, wave: WaveDone) -> None:
    for node in wave.nodes:
        if node.id != len(tree.nodes) or not 0 <= node.parent < node.id or tree.nodes[node.parent].finished:
            raise RunError(
                f"the run's events are damaged: node {node.id} of question {wave.question!r} does not follow from the "
                "nodes before it"
            )
        if len(node.logprobs) != len(node.tokens):
            raise RunError(
                f"the run's events are damaged: node {node.id} of question {wave.question!r} has {len(node.tokens)} "
                f"tokens and {len(node.logprobs)} log-probabilities"
            )
        grown = tree.add(node.parent, node.tokens, node.text, node.logprobs, finished=node.finished)
        grown.score = node.score
        grown.state = "finished" if node.finished else "pruned"
        tree.nodes[node.parent].state = "kept"
    tree.temperature = wave.temperature
    for leaf, label in wave.clusters.items():
        _node(tree, leaf, wave.question).cluster = label
    for parent in wave.children:
        _node(tree, parent, wave.question).state = "kept"


def _add_verdicts(tree: Tree, event: QuestionFinished) -> None:
    for judged in event.leaves:
        node = _node(tree, judged.leaf, event.question)
        node.outcome, node.reward = judged.outcome, judged.reward
        if not node.finished:
            node.state = "stopped"


def _node(tree: Tree, node: int, question: str) -> Node:
    if not 0 <= node < len(tree.nodes):
        raise RunError(f"the run's events are damaged: question {question!r} has no node {node}")
    return tree.nodes[node]
