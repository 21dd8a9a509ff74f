"""Writes an event for every question the loop starts and every wave it finishes."""

from collections.abc import Callable, Sequence

from palmette.events import Event, NodeRecord, QuestionStarted, WaveDone
from palmette.search.growth import Growth, Observer
from palmette.tree import Node


class Recorder(Observer):
    """An observer of the loop that passes events to `write`.

    It does not write QuestionFinished: the caller does, after it has judged the answers.
    """

    def __init__(self, write: Callable[[Event], None]) -> None:
        self._write = write
        self.peak_kv_tokens = 0
        """The largest sum of the KV tokens of all questions in flight, each as held after its last whole wave.

        Each question counts its whole prompt, while the engine stores a beginning of 16 tokens or more that prompts
        have in common once.
        """

    def started(self, growth: Growth) -> None:
        """Write QuestionStarted."""
        question, prompt = growth.question, growth.tree.prompt_tokens
        asked = question.messages[-1]["content"]
        self._write(
            QuestionStarted(question.id, asked, question.reference, len(prompt), question.digest, tuple(prompt))
        )

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Update `peak_kv_tokens`."""
        self.peak_kv_tokens = max(self.peak_kv_tokens, sum(growth.kv[-1].held for growth in growing if growth.kv))

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Write WaveDone with the steps that the wave added."""
        self._write(
            WaveDone(
                growth.question.id,
                growth.wave,
                tuple(_record(node) for node in added),
                children=dict(growth.grants),
                kv_tokens=growth.kv[-1].held,
                separate_kv_tokens=growth.kv[-1].unshared,
                clusters=dict(growth.clusters),
                temperature=growth.tree.temperature,
                kv_as_held=True,
            )
        )


def _record(node: Node) -> NodeRecord:
    assert node.parent is not None
    # Four decimals: later ones depend on which other rows were in the batch.
    logprobs = tuple(round(logprob, 4) for logprob in node.logprobs)
    # The score as it is: `evaluate` has to elect what the run elected, and rounded scores tie.
    return NodeRecord(node.id, node.parent, tuple(node.tokens), node.text, logprobs, node.finished, node.score)
