"""Turns what the loop tells into events: trees as they grow, answers as they are judged."""

from collections import Counter
from collections.abc import Callable, Sequence

from palmette.config import Aggregate
from palmette.events import Chosen, Event, NodeRecord, QuestionFinished, QuestionStarted, WaveDone
from palmette.score.judge import Judge
from palmette.search.answer import VOTES, ballots, elect
from palmette.search.loop import Growth, Observer
from palmette.tree import Node


class Recorder(Observer):
    """Writes one event for each thing the loop tells; `done` is called after a question's last event."""

    def __init__(self, write: Callable[[Event], None], judge: Judge, how: Aggregate, done: Callable[[], None]) -> None:
        self._write = write
        self._judge = judge
        self._how = how
        self._done = done
        self.peak_kv_tokens = 0
        """What all trees in flight held together at the most."""

    def started(self, growth: Growth) -> None:
        """Record the question."""
        asked = growth.question.messages[-1]["content"]
        prompt = len(growth.tree.prompt_tokens)
        self._write(
            QuestionStarted(growth.question.id, asked, growth.question.reference, prompt, growth.question.digest)
        )

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Keep the peak."""
        self.peak_kv_tokens = max(self.peak_kv_tokens, sum(growth.kv_tokens[-1] for growth in growing))

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Record the steps a wave added."""
        nodes = tuple(_record(node) for node in added)
        kv, separate = growth.kv_tokens[-1], growth.separate_kv_tokens[-1]
        children, clusters = dict(growth.grants), dict(growth.clusters)
        self._write(WaveDone(growth.question.id, growth.wave, nodes, children, kv, separate, clusters))

    def finished(self, growth: Growth) -> None:
        """Vote, judge and record the answers."""
        self._write(judge_answers(growth, self._judge, self._how))
        self._done()


def judge_answers(growth: Growth, judge: Judge, how: Aggregate) -> QuestionFinished:
    """Elect an answer in every way there is and judge each; every leaf that was not pruned is judged alone too."""
    cast = ballots(growth.tree, how, judge.extract, judge.canonical)
    outcomes: dict[str | None, str] = {}

    def outcome(answer: str | None) -> str:
        if answer not in outcomes:
            outcomes[answer] = judge.outcome(growth.question, answer).value
        return outcomes[answer]

    elected = {vote: elect(cast, vote) for vote in VOTES}
    answers = {ballot.leaf: ballot.answer for ballot in cast}
    leaves = Counter(outcome(answers.get(leaf)) for leaf in growth.ended)
    return QuestionFinished(
        question=growth.question.id,
        choices={vote: Chosen(answer, outcome(answer)) for vote, answer in elected.items()},
        leaf_outcomes=dict(leaves),
        generated_tokens=growth.tree.generated_tokens(),
        mean_kv_tokens=sum(growth.kv_tokens) / len(growth.kv_tokens),
        peak_kv_tokens=max(growth.kv_tokens),
        peak_separate_kv_tokens=max(growth.separate_kv_tokens),
        waves=growth.wave,
        out_of_room=growth.out_of_room,
    )


def _record(node: Node) -> NodeRecord:
    assert node.parent is not None
    # Four decimals: beyond them a log-probability moves with the batch.
    logprobs = tuple(round(logprob, 4) for logprob in node.logprobs)
    score = None if node.score is None else round(node.score, 6)
    return NodeRecord(node.id, node.parent, node.tokens, node.text, logprobs, node.finished, score)
