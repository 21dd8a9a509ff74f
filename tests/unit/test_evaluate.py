import pytest

from palmette.commands.report import MOST_CHECK_SECONDS, _hurried
from palmette.config import load_config
from palmette.errors import RunError
from palmette.events import Chosen, Event, NodeRecord, QuestionFinished, QuestionStarted, WaveDone
from palmette.score.judges.math import MathJudge
from palmette.search.rejudge import Rejudge, evaluate
from palmette.search.replay import replay
from palmette.tasks.task import Question

ASKED = Question("q", ({"role": "user", "content": "1+1"},), "2")


def step(number: int, parent: int, text: str, score: float, *, finished: bool = False) -> NodeRecord:
    return NodeRecord(number, parent, (1,), text, (0.0,), finished, score)


def told(*nodes: NodeRecord) -> list[Event]:
    chosen = {"best": Chosen("2", "correct")}
    return [
        QuestionStarted("q", "1+1", "2", 5, "d"),
        WaveDone("q", 0, nodes, {}, 1, 1),
        QuestionFinished("q", chosen, {}, 1, 1.0, 1, 1, 1),
    ]


NODES = (
    step(1, 0, "a\n", 0.2),
    step(2, 0, "b\n", 0.9),
    step(3, 1, "=2", 0.9, finished=True),  # last 0.9, min 0.2, mean 0.55, prod 0.18
    step(4, 2, "=3", 0.4, finished=True),  # last 0.4, min 0.4, mean 0.65, prod 0.36
)


def test_each_aggregate_elects_by_its_own_scores() -> None:
    found = evaluate(replay(told(*NODES)).values(), Rejudge(MathJudge(3600), [ASKED]))
    right = {how: votes["best"].share for how, votes in found.items()}
    assert right == {"last": 1.0, "min": 0.0, "mean": 0.0, "prod": 0.0}
    assert all(votes["majority"].share == 1.0 for votes in found.values())  # a tie goes to the older leaf


def test_a_replay_rebuilds_the_tree() -> None:
    one = replay(told(*NODES))["q"]
    assert one.tree.solution(4) == "b\n=3"
    assert one.tree.leaves() == [3, 4]
    assert one.tree.distinct_tokens([3, 4]) == 5 + 2


def test_a_second_start_voids_the_first_attempt() -> None:
    one = replay([*told(*NODES), *told(NODES[0])])["q"]
    assert len(one.tree.nodes) == 2


@pytest.mark.parametrize("nodes", [(step(2, 0, "x", 0.1),), (step(1, 1, "x", 0.1),), (step(1, -1, "x", 0.1),)])
def test_events_with_a_gap_are_refused(nodes: tuple[NodeRecord, ...]) -> None:
    with pytest.raises(RunError, match="does not follow from the nodes before it"):
        replay(told(*nodes))


def test_a_task_that_changed_since_the_run_is_refused() -> None:
    other = Question("q", ASKED.messages, "5")
    with pytest.raises(RunError, match="no longer in the task"):
        evaluate(replay(told(*NODES)).values(), Rejudge(MathJudge(3600), [other]))
    with pytest.raises(RunError, match="before they start it"):
        replay(told(*NODES)[1:])


def test_answers_of_a_stranger_s_run_are_judged_for_a_limited_time() -> None:
    config = load_config(None, {"task.verify_seconds": 3600.0})
    assert (_hurried(config, trusted=False).task.verify_seconds, MOST_CHECK_SECONDS) == (5.0, 5.0)
    assert _hurried(config, trusted=True).task.verify_seconds == 3600
    found = evaluate(replay(told(*NODES)).values(), Rejudge(MathJudge(3600), [ASKED], most_seconds=0))
    assert {accuracy.questions for by_vote in found.values() for accuracy in by_vote.values()} == {0}
