"""The result of a search for one question: the elected answer, every vote, the verdicts and the whole tree."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from palmette import registry
from palmette.events import Chosen, JudgedLeaf, QuestionFinished
from palmette.score.judge import Judge, Verdict
from palmette.search.answer import VOTES, Ballot, ballots, elect
from palmette.search.checked import CheckedJudge
from palmette.search.growth import Growth
from palmette.settings import SearchSettings
from palmette.tasks.task import Question
from palmette.tree import Node, Tree


@dataclass(frozen=True)
class Choice:
    """What one vote elects: the answer, its outcome, and the leaf whose ballot won.

    `answer` and `leaf` are None if no finished leaf has an answer; `outcome` is None if the answer cannot be judged.
    """

    answer: str | None
    outcome: str | None
    leaf: int | None


@dataclass(frozen=True)
class SearchResult:
    """Everything a search found for one question.

    `answer`, `outcome`, `solution` and `score` belong to the leaf that `vote` elects. KV tokens are those that the
    cache holds for the branches in flight at the end of a wave, prompt included: every distinct prefix once (see
    `Tree.kv_counts`); `mean` and `peak` are over the waves.
    """

    question: Question
    strategy: str
    width: int
    vote: str
    choices: dict[str, Choice]
    ballots: tuple[Ballot, ...]
    tree: Tree
    tokens: int
    """Tokens that the policy generated, pruned branches included."""
    mean_kv_tokens: float
    peak_kv_tokens: int
    unshared_kv_tokens: int
    """The peak if no prefix were shared, that is if every branch kept a KV cache of its whole path."""
    waves: int
    out_of_room: bool
    """Whether the search ended because the tree had filled its share of `search.kv_budget`."""

    @property
    def answer(self) -> str | None:
        """The elected answer, None if no finished leaf has an answer."""
        return self.choices[self.vote].answer

    @property
    def outcome(self) -> str | None:
        """`correct`, `wrong`, `unparseable` or `timed_out`; None without a verdict, as without a reference."""
        return self.choices[self.vote].outcome

    @property
    def solution(self) -> str | None:
        """The text of all steps on the path to the elected leaf, None without one."""
        leaf = self.choices[self.vote].leaf
        return None if leaf is None else self.tree.solution(leaf)

    @property
    def score(self) -> float | None:
        """The aggregated score of the path to the elected leaf, None without a leaf or if its steps were not scored."""
        leaf = self.choices[self.vote].leaf
        scored = leaf is not None and self.tree.scores(leaf)
        return next(ballot.score for ballot in self.ballots if ballot.leaf == leaf) if scored else None

    @property
    def leaves(self) -> list[Node]:
        """The leaves that were not pruned (finished, or stopped by a limit), each with its outcome and reward."""
        return [node for node in self.tree.nodes if node.state in ("finished", "stopped")]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, the properties above and the tree as JSON values."""
        question = {"id": self.question.id, "messages": list(self.question.messages)}
        return {
            "question": {**question, "reference": self.question.reference},
            "answer": self.answer,
            "outcome": self.outcome,
            "solution": self.solution,
            "score": self.score,
            "strategy": self.strategy,
            "width": self.width,
            "vote": self.vote,
            "choices": {vote: asdict(choice) for vote, choice in self.choices.items()},
            "ballots": [asdict(ballot) for ballot in self.ballots],
            "tokens": self.tokens,
            "mean_kv_tokens": self.mean_kv_tokens,
            "peak_kv_tokens": self.peak_kv_tokens,
            "unshared_kv_tokens": self.unshared_kv_tokens,
            "waves": self.waves,
            "out_of_room": self.out_of_room,
            "tree": self.tree.to_dict(),
        }

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.3f}"
        outcome = "" if self.outcome is None else f", outcome={self.outcome!r}"
        return (
            f"SearchResult(answer={self.answer!r}{outcome}{score}, strategy={self.strategy!r}, "
            f"{len(self.tree.nodes) - 1} steps, {self.tokens} tokens)"
        )

    def _repr_html_(self) -> str:
        """Return the result as HTML for notebooks; model text is escaped."""
        from palmette.search.picture import result_html

        return result_html(self)


def judge_tree(growth: Growth, judge: Judge, settings: SearchSettings) -> SearchResult:
    """Judge every leaf that was not pruned, run every vote, and return the result.

    Also sets `outcome` and `reward` of those leaves in the tree. Raises RunError where the judge fails.
    """
    tree, question = growth.tree, growth.question
    judge = CheckedJudge(judge)
    votes = ballots(tree, settings.aggregate, judge.extract, judge.canonical)
    answers = {ballot.leaf: ballot.answer for ballot in votes}
    verdict = _judge_once(growth, judge)
    for leaf in growth.ended:
        found = verdict(leaf, answers.get(leaf))
        tree.nodes[leaf].outcome, tree.nodes[leaf].reward = found.outcome, found.reward
    choices: dict[str, Choice] = {}
    for vote in VOTES:
        elected = elect(votes, vote)
        if elected is None:
            choices[vote] = Choice(None, verdict(None, None).outcome, None)
        else:
            choices[vote] = Choice(elected.answer, verdict(elected.leaf, elected.answer).outcome, elected.leaf)
    return SearchResult(
        question=question,
        strategy=registry.lasting(settings.strategy),
        width=settings.width,
        vote=settings.vote,
        choices=choices,
        ballots=tuple(votes),
        tree=tree,
        tokens=tree.generated_tokens(),
        mean_kv_tokens=sum(kv.held for kv in growth.kv) / len(growth.kv),
        peak_kv_tokens=max(kv.held for kv in growth.kv),
        unshared_kv_tokens=max(kv.unshared for kv in growth.kv),
        waves=growth.wave,
        out_of_room=growth.out_of_room,
    )


def _judge_once(growth: Growth, judge: Judge) -> "Callable[[int | None, str | None], Verdict]":
    """Return a function of leaf and answer that judges and remembers.

    Each distinct answer is judged once if the judge goes by the answer alone (`by_answer`), else each leaf once.
    """
    known: dict[str | int | None, Verdict] = {}

    def verdict(leaf: int | None, answer: str | None) -> Verdict:
        key = answer if judge.by_answer else leaf
        if key not in known:
            solution = "" if leaf is None else growth.tree.solution(leaf)
            known[key] = judge.verdict(growth.question, solution, answer)
        return known[key]

    return verdict


def finished_event(result: SearchResult) -> QuestionFinished:
    """Return the result as the event that ends a question in the run's file."""
    answers = {ballot.leaf: ballot.answer for ballot in result.ballots}
    leaves = [JudgedLeaf(node.id, answers.get(node.id), node.outcome, node.reward) for node in result.leaves]
    return QuestionFinished(
        question=result.question.id,
        choices={vote: Chosen(choice.answer, choice.outcome) for vote, choice in result.choices.items()},
        leaf_outcomes=dict(Counter(leaf.outcome for leaf in leaves if leaf.outcome is not None)),
        generated_tokens=result.tokens,
        mean_kv_tokens=result.mean_kv_tokens,
        peak_kv_tokens=result.peak_kv_tokens,
        peak_separate_kv_tokens=result.unshared_kv_tokens,
        waves=result.waves,
        out_of_room=result.out_of_room,
        leaves=tuple(leaves),
        kv_as_held=True,
    )
