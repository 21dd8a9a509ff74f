"""From a tree that has ended to its result, and from its events back to the tree."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from palmette.backends.backend import Expansion
from palmette.backends.scripted import ScriptedBackend
from palmette.event_log import EventLog, read_events
from palmette.events import Chosen, Event, JudgedLeaf
from palmette.score.judge import Verdict
from palmette.score.scorer import Candidate
from palmette.search.growth import Growth, Limits
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.search.rejudge import Rejudge
from palmette.search.replay import replay
from palmette.search.result import SearchResult, finished_event, judge_tree
from palmette.search.strategies.best_of_n import BestOfN
from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.search.strategies.rebase import Rebase
from palmette.settings import Aggregate, SearchSettings
from palmette.strategy import Strategy
from palmette.tasks.task import Question

ASKED = Question("q", ({"role": "user", "content": "6*7?"},), "42")


@dataclass
class Counting:
    """Reads what follows the last `=`; remembers what it was asked."""

    by_answer: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def extract(self, solution: str) -> str | None:
        return solution.rpartition("=")[2] if "=" in solution else None

    def canonical(self, answer: str) -> str:
        return answer.strip()

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        self.asked.append((solution, answer))
        if answer is None:
            return Verdict("unparseable", 0.0)
        right = answer.strip() == question.reference
        return Verdict("correct" if right else "wrong", 0.5 if right else 0.0)


class Table:
    """Scores a step by its text."""

    calls = 0

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        self.calls += 1
        return [self._scores.get(candidate.steps[-1], 0.5) for candidate in candidates]


# Five branches: one step, then an end. The last one never ends and stops at its depth.
ENDS = {1: "a\n", 2: "b\n", 3: "c\n", 4: "d\n", 5: "e\n", 6: "=42$", 7: "= 42$", 8: "=41$", 9: "none$", 10: "on\n"}
SCORES = {"a\n": 0.5, "b\n": 0.4, "c\n": 0.9, "d\n": 0.9, "=42": 0.6, "= 42": 0.75, "=41": 0.5}


def script(expansion: Expansion, above: str) -> str:
    assert expansion.node is not None
    return ENDS[expansion.node]


def grown(strategy: Strategy, events: list[Event], room: int | None = None) -> Growth:
    limits = Limits(width=5, depth=2, step_tokens=9, total_tokens=99, questions_in_flight=1, room=room)
    (growth,) = search(
        [ASKED], ScriptedBackend(script), Table(SCORES), strategy, limits,
        seed=0, aggregate="prod", observer=Recorder(events.append),
    )  # fmt: skip
    return growth


SETTINGS = SearchSettings(width=5, aggregate="prod", vote="weighted")


def result_of(judge: Counting) -> SearchResult:
    return judge_tree(grown(BestOfN(), []), judge, SETTINGS)


def test_every_vote_and_every_leaf_of_a_hand_worked_tree() -> None:
    result = result_of(Counting())
    # Products: 42 by 0.5 x 0.6 = 0.3 and 0.4 x 0.75 = 0.3, 41 by 0.9 x 0.5 = 0.45, the last two give no answer.
    assert [(ballot.leaf, ballot.canonical) for ballot in result.ballots] == [(6, "42"), (7, "42"), (8, "41")]
    assert [ballot.score for ballot in result.ballots] == pytest.approx([0.3, 0.3, 0.45])
    told = {vote: (choice.answer, choice.outcome, choice.leaf) for vote, choice in result.choices.items()}
    assert told == {
        "best": ("41", "wrong", 8),
        "majority": ("42", "correct", 6),
        "weighted": ("42", "correct", 6),  # 0.6 against 0.45
    }
    assert (result.answer, result.outcome, result.solution) == ("42", "correct", "a\n=42")
    assert result.score == pytest.approx(0.3)
    assert [(leaf.id, leaf.state, leaf.outcome, leaf.reward) for leaf in result.leaves] == [
        (6, "finished", "correct", 0.5),
        (7, "finished", "correct", 0.5),
        (8, "finished", "wrong", 0.0),
        (9, "finished", "unparseable", 0.0),
        (10, "stopped", "unparseable", 0.0),
    ]
    # Steps of 2 tokens, then of 4, 5, 4, 5 (the end token among them) and 3; the prompt has 4.
    assert (result.tokens, result.waves, result.out_of_room) == (10 + 21, 2, False)
    # The last token of each branch has no KV yet.
    assert (result.mean_kv_tokens, result.peak_kv_tokens) == ((9 + 30) / 2, 4 + 10 + 21 - 5)
    assert result.unshared_kv_tokens == 5 * 4 + 10 + 21 - 5


def test_a_judge_that_goes_by_answers_is_asked_once_for_each() -> None:
    judge = Counting()
    result_of(judge)
    assert [answer for _, answer in judge.asked] == ["42", " 42", "41", None]


def test_a_judge_that_looks_at_solutions_is_asked_for_every_leaf_with_its_text() -> None:
    judge = Counting(by_answer=False)
    result_of(judge)
    assert judge.asked == [
        ("a\n=42", "42"), ("b\n= 42", " 42"), ("c\n=41", "41"), ("d\nnone", None), ("e\non\n", None),
    ]  # fmt: skip


def test_a_tree_without_an_answer_elects_none() -> None:
    (growth,) = search(
        [ASKED], ScriptedBackend(lambda expansion, above: "no idea$"), None, BestOfN(), Limits(2, 2, 9, 99, 1),
        seed=0, aggregate="prod", observer=Recorder(lambda event: None),
    )  # fmt: skip
    result = judge_tree(growth, Counting(), SETTINGS)
    assert (result.answer, result.outcome, result.solution, result.score) == (None, "unparseable", None, None)
    assert all(choice.leaf is None for choice in result.choices.values())


def test_a_result_is_json_and_the_event_says_the_same() -> None:
    result = result_of(Counting())
    told = json.loads(json.dumps(result.to_dict()))
    assert (told["answer"], told["choices"]["best"]) == ("42", {"answer": "41", "outcome": "wrong", "leaf": 8})
    assert len(told["tree"]["steps"]) == 10
    assert told["tree"]["steps"][9]["state"] == "stopped"
    event = finished_event(result)
    assert event.choices["best"] == Chosen("41", "wrong")
    assert event.leaf_outcomes == {"correct": 2, "wrong": 1, "unparseable": 2}
    assert event.leaves[1] == JudgedLeaf(7, " 42", "correct", 0.5)
    assert event.leaves[4] == JudgedLeaf(10, None, "unparseable", 0.0)
    assert (event.generated_tokens, event.peak_kv_tokens, event.peak_separate_kv_tokens) == (31, 30, 46)


@pytest.mark.parametrize(
    ("strategy", "room"), [(BestOfN(), None), (Rebase(), None), (Ets(EtsSettings(lambda_diversity=0.0)), 4 + 12)]
)
def test_events_read_back_as_the_tree_that_wrote_them(strategy: Strategy, room: int | None) -> None:
    events: list[Event] = []
    growth = grown(strategy, events, room)
    result = judge_tree(growth, Counting(), SETTINGS)
    events.append(finished_event(result))
    one = replay(events)["q"]
    assert one.tree == result.tree
    assert one.finished == events[-1]
    assert {node.state for node in one.tree.nodes} <= {"kept", "pruned", "finished", "stopped"}


@pytest.mark.parametrize("aggregate", ["last", "min", "mean", "prod"])
def test_scores_that_differ_by_less_than_a_millionth_elect_the_same_answer_from_the_file(
    aggregate: Aggregate, tmp_path: Path
) -> None:
    answers = {1: "=41$", 2: "=42$", 3: "=43$"}
    scores = Table({"=41": 2e-8, "=42": 1e-7 / 3, "=43": 3e-300})
    with EventLog(tmp_path) as log:
        (growth,) = search(
            [ASKED], ScriptedBackend(lambda expansion, above: answers[expansion.node or 0]), scores, BestOfN(),
            Limits(3, 2, 9, 99, 1), seed=0, aggregate=aggregate, observer=Recorder(log.write),
        )  # fmt: skip
    result = judge_tree(growth, Counting(), SearchSettings(width=3, aggregate=aggregate))
    read = replay(read_events(tmp_path))["q"]
    assert Rejudge(Counting(), [ASKED]).ballots(read, aggregate) == list(result.ballots)
    assert {vote: result.choices[vote].answer for vote in ("best", "weighted")} == {"best": "42", "weighted": "42"}


def test_a_tree_is_drawn_as_text_without_anything_that_could_draw_on_a_terminal() -> None:
    growth = grown(Rebase(), [])
    growth.tree.nodes[1].text = "red \x1b[31m\n"
    drawn = str(judge_tree(growth, Counting(), SETTINGS).tree)
    assert len(drawn.splitlines()) == len(growth.tree.nodes)
    assert "\x1b" not in drawn
    assert drawn.startswith("prompt\n├─ 0.50 red  [31m")
