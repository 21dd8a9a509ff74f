"""Scores that take long hold up nobody but the question they are for."""

import threading
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from typing import Any

import pytest

from palmette.backends.backend import Expansion
from palmette.backends.scripted import ScriptedBackend
from palmette.errors import BackendError
from palmette.memory.guard import run_whole
from palmette.score.guarded import GuardedScorer
from palmette.score.scorer import Candidate, StartsScores
from palmette.search.growth import Limits, Observer
from palmette.search.loop import search
from palmette.search.strategies.rebase import Rebase, RebaseSettings
from palmette.tasks.task import Question
from tests.gateway import Gate, SpellingBackend, gateway_with

LIMITS = Limits(width=3, depth=9, step_tokens=50, total_tokens=100, questions_in_flight=2)


def written(expansion: Expansion, above: str) -> str:
    """Write two steps that differ by node, then a last one."""
    return f"{expansion.node}\n" if above.count("\n") < 2 else "done$"


def plain_scores(candidates: Sequence[Candidate]) -> list[float]:
    return [0.1 + len("".join(candidate.steps)) / 100 for candidate in candidates]


class AtOnce:
    calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        return plain_scores(candidates)


class Later(AtOnce):
    """Holds the scores of the first wave of question `a` back until `give` is called; `asked` tells that they are."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.held: list[tuple[Future[list[float]], list[float]]] = []

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        raise AssertionError("it was waited for")

    def begin(self, candidates: Sequence[Candidate]) -> "Future[list[float]]":
        future: Future[list[float]] = Future()
        scores = plain_scores(candidates)
        if "a?" in candidates[0].messages[-1]["content"] and len(candidates[0].steps) == 1:
            self.held.append((future, scores))
            self.asked.set()
        else:
            future.set_result(scores)
        return future

    def wait(self, begun: "Collection[Future[list[float]]]") -> None:
        wait(begun, return_when=FIRST_COMPLETED)

    def give(self) -> None:
        for future, scores in self.held:
            if not future.done():
                future.set_result(scores)


def searched(backend: Any, scorer: Any) -> dict[str, list[tuple[int | None, str, float | None]]]:
    """Search two questions; return their trees in the order in which they ended."""
    questions = [Question(name, ({"role": "user", "content": f"{name}?"},), "1") for name in "ab"]
    strategy = Rebase(RebaseSettings(rebase_temperature=0.2))
    growths = search(questions, backend, scorer, strategy, LIMITS, seed=0, aggregate="last", observer=Observer())
    return {
        growth.question.id: [(node.parent, node.text, node.score) for node in growth.tree.nodes[1:]]
        for growth in growths
    }


def test_other_questions_go_on_while_one_is_scored_and_no_tree_changes() -> None:
    scorer = Later()

    def script(expansion: Expansion, above: str) -> str:
        step = written(expansion, above)
        if expansion.question == "b" and step == "done$":
            scorer.give()  # Only now: the search comes here without the scores of `a`, or never.
        return step

    found = searched(ScriptedBackend(script), scorer)
    assert [*found] == ["b", "a"]
    assert found == searched(ScriptedBackend(written), AtOnce())


def test_scores_that_come_while_steps_are_waited_for_are_used_at_once() -> None:
    scorer = Later()
    gate = Gate(lambda expansion, above: expansion.question == "b" and above.count("\n") == 1)

    def script(expansion: Expansion, above: str) -> str:
        step = written(expansion, above)
        if expansion.question == "a" and step == "done$":
            gate.open()  # Only now: `a` comes to its end while a step of `b` is waited for, or never.
        return step

    def give() -> None:
        gate.reached.wait()
        scorer.give()

    giving = threading.Thread(target=give)
    giving.start()
    found = searched(SpellingBackend(script, gate), scorer)
    giving.join()
    assert found == searched(ScriptedBackend(written), AtOnce())


def test_scores_that_fail_end_the_search_and_others_are_given_up() -> None:
    class Failing(Later):
        def begin(self, candidates: Sequence[Candidate]) -> "Future[list[float]]":
            future = super().begin(candidates)
            if future.done():
                future = Future()
                future.set_exception(RuntimeError("out of order"))
            return future

    scorer = Failing()
    with pytest.raises(BackendError, match="scorer Failing failed in score: RuntimeError: out of order"):
        searched(ScriptedBackend(written), scorer)
    assert [future.cancelled() for future, _ in scorer.held] == [True]


def test_a_guard_around_a_scorer_begins_only_where_that_one_can() -> None:
    def guarded(scorer: Any) -> Any:
        return GuardedScorer(scorer, run_whole, nullcontext)

    candidates = [Candidate(({"role": "user", "content": "b?"},), ("x",), False)]
    assert guarded(AtOnce()).begin(candidates) is None
    begun = guarded(Later()).begin(candidates)
    guarded(Later()).wait([begun])
    assert begun.result() == plain_scores(candidates)
    assert isinstance(Later(), StartsScores) and not isinstance(AtOnce(), StartsScores)


def test_the_gateway_answers_others_while_one_request_is_scored() -> None:
    scorer = Later()
    with gateway_with(SpellingBackend(written), scorer) as served, served.client() as client:

        def ask(question: str) -> str | None:
            told: Any = {"role": "user", "content": question}
            return client.chat.completions.create(model="script:rebase", messages=[told]).choices[0].message.content

        answers: list[str | None] = []
        first = threading.Thread(target=lambda: answers.append(ask("a?")))
        first.start()
        scorer.asked.wait()
        assert ask("c?") is not None and not answers
        scorer.give()
        first.join()
        assert answers == [ask("c?")]
