"""Turns what the loop tells into events: trees as they grow, answers as they are judged."""

from collections.abc import Callable, Sequence

from palmette.events import Event, NodeRecord, QuestionStarted, WaveDone
from palmette.search.loop import Growth, Observer
from palmette.tree import Node


class Recorder(Observer):
    """Writes one event for each thing the loop tells. A question's last event is written by who judges its answers."""

    def __init__(self, write: Callable[[Event], None]) -> None:
        self._write = write
        self.peak_kv_tokens = 0
        """What all trees in flight held together at the most."""

    def started(self, growth: Growth) -> None:
        """Record the question."""
        question, prompt = growth.question, growth.tree.prompt_tokens
        asked = question.messages[-1]["content"]
        self._write(
            QuestionStarted(question.id, asked, question.reference, len(prompt), question.digest, tuple(prompt))
        )

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Keep the peak."""
        self.peak_kv_tokens = max(self.peak_kv_tokens, sum(growth.kv_tokens[-1] for growth in growing))

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Record the steps a wave added."""
        self._write(
            WaveDone(
                growth.question.id,
                growth.wave,
                tuple(_record(node) for node in added),
                children=dict(growth.grants),
                kv_tokens=growth.kv_tokens[-1],
                separate_kv_tokens=growth.separate_kv_tokens[-1],
                clusters=dict(growth.clusters),
                temperature=growth.tree.temperature,
            )
        )


def _record(node: Node) -> NodeRecord:
    assert node.parent is not None
    # Four decimals: beyond them a log-probability moves with the batch.
    logprobs = tuple(round(logprob, 4) for logprob in node.logprobs)
    score = None if node.score is None else round(node.score, 6)
    return NodeRecord(node.id, node.parent, node.tokens, node.text, logprobs, node.finished, score)
