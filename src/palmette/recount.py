"""Counts the KV tokens in events of earlier versions again, as a cache holds them: those counted equal siblings twice.

Every wave has recorded the tokens of its steps, so nothing is lost. A run that was resumed can have questions of both
kinds; all waves of one question are of one kind, because a question is begun again if its process has ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from palmette.events import Event, QuestionFinished, QuestionStarted, WaveDone
from palmette.prefixes import KvCounts
from palmette.tree import Tree


@dataclass
class _Question:
    tree: Tree
    waves: list[KvCounts] = field(default_factory=list)


def recounted(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events with the KV tokens of waves and questions as held; `Session.peak_kv_tokens` stays as it was.

    Events whose nodes do not follow from each other are passed on unchanged: `replay` tells of such damage.
    """
    growing: dict[str, _Question] = {}
    for event in events:
        if isinstance(event, QuestionStarted):
            # The tokens of the prompt do not matter: all paths of a question begin with all of them.
            growing[event.question] = _Question(Tree(range(event.prompt_tokens)))
            yield event
        elif isinstance(event, WaveDone):
            yield _wave(event, growing)
        elif isinstance(event, QuestionFinished):
            yield _finished(event, growing.pop(event.question, None))
        else:
            yield event


def _wave(event: WaveDone, growing: dict[str, _Question]) -> WaveDone:
    question = growing.get(event.question)
    if event.kv_as_held or question is None:
        return event
    tree = question.tree
    for node in event.nodes:
        if node.id != len(tree.nodes) or not 0 <= node.parent < node.id or tree.nodes[node.parent].finished:
            del growing[event.question]
            return event
        tree.add(node.parent, node.tokens, "", (), finished=node.finished)
    counts = tree.kv_counts(node.id for node in event.nodes)
    question.waves.append(counts)
    return replace(event, kv_tokens=counts.held, separate_kv_tokens=counts.unshared, kv_as_held=True)


def _finished(event: QuestionFinished, question: _Question | None) -> QuestionFinished:
    if event.kv_as_held or question is None or not question.waves:
        return event
    held = [wave.held for wave in question.waves]
    return replace(
        event,
        mean_kv_tokens=sum(held) / len(held),
        peak_kv_tokens=max(held),
        peak_separate_kv_tokens=max(wave.unshared for wave in question.waves),
        kv_as_held=True,
    )
