import pytest

from palmette.events import Chosen, Event, NodeRecord, QuestionFinished, QuestionStarted, WaveDone
from palmette.score.judges.math import MathJudge
from palmette.search.curve import Point, at_tokens, curve, doublings
from palmette.search.rejudge import Rejudge
from palmette.search.replay import replay
from palmette.search.summary import Accuracy
from palmette.tasks.task import Question

REJUDGE = Rejudge(MathJudge(3600), [Question(name, ({"role": "user", "content": "1+1"},), "2") for name in ("q", "r")])


def step(number: int, parent: int, tokens: int, text: str, score: float, *, finished: bool = False) -> NodeRecord:
    return NodeRecord(number, parent, (number,) * tokens, text, (0.0,) * tokens, finished, score)


def told(question: str, *waves: tuple[NodeRecord, ...]) -> list[Event]:
    return [
        QuestionStarted(question, "1+1", "2", 10, "d"),
        *(WaveDone(question, place, nodes, {}, 0, 0) for place, nodes in enumerate(waves)),
        QuestionFinished(question, {"best": Chosen("2", "correct")}, {}, 0, 0.0, 0, 0, len(waves)),
    ]


# Three branches: 1-4 answers 3, 2 answers 2 at once, 3-5 answers 2. The prompt has 10 tokens.
GROWN = told(
    "q",
    (step(1, 0, 4, "a\n", 0.9), step(2, 0, 6, "=2", 0.5, finished=True), step(3, 0, 5, "c\n", 0.9)),
    (step(4, 1, 3, "=3", 0.9, finished=True), step(5, 3, 2, "=2", 0.9, finished=True)),
)
# One branch only, right at once.
SHORT = told("r", (step(1, 0, 8, "=2", 0.5, finished=True),))


def test_the_first_branches_are_voted_on_and_metered_as_a_run_of_that_width() -> None:
    one, two, three = curve(replay(GROWN).values(), REJUDGE, "last", "weighted", (1, 2, 3))
    # Branch 1 alone: wrong; 4 + 3 tokens; KV 10 + 3 (its last token has none yet), then 10 + 6.
    assert (one.accuracy.share, one.generated_tokens, one.mean_kv_tokens) == (0.0, 7.0, 14.5)
    # With branch 2: 0.9 for 3 against 0.5 for 2; KV 10 + 3 + 5, then branch 1's path alone.
    assert (two.accuracy.share, two.generated_tokens, two.mean_kv_tokens) == (0.0, 13.0, 17.0)
    # With branch 3: 0.9 against 1.4; KV 10 + 3 + 5 + 4, then 10 + 6 + 6.
    assert (three.accuracy.share, three.generated_tokens, three.mean_kv_tokens) == (1.0, 20.0, 22.0)


def test_questions_are_averaged_and_branches_that_are_missing_cost_nothing() -> None:
    one, three = curve(replay([*GROWN, *SHORT]).values(), REJUDGE, "last", "weighted", (1, 3))
    assert (one.accuracy, one.generated_tokens, one.mean_kv_tokens) == (Accuracy(1, 2, {}), 7.5, (14.5 + 17) / 2)
    assert (three.accuracy.share, three.generated_tokens) == (1.0, 14.0)


def test_other_votes_elect_other_answers_from_the_same_branches() -> None:
    (two,) = curve(replay(GROWN).values(), REJUDGE, "last", "majority", (2,))
    assert two.accuracy.share == 1.0  # one vote each: the tie goes to the older leaf, 2


def test_questions_that_are_not_finished_are_left_out() -> None:
    assert curve(replay(GROWN[:-1]).values(), REJUDGE, "last", "weighted", (1,)) == []


@pytest.mark.parametrize(("most", "counts"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))])
def test_counts_double_up_to_the_width_itself(most: int, counts: tuple[int, ...]) -> None:
    assert doublings(most) == counts


def test_accuracy_at_a_cost_is_read_between_points_and_never_far_beyond_them() -> None:
    points = [
        Point(n, Accuracy(right, 10, {}), tokens, 0.0) for n, right, tokens in [(1, 2, 100), (2, 4, 400), (4, 9, 800)]
    ]
    assert at_tokens(points, 200) == pytest.approx(0.3)
    assert at_tokens(points, 400) == pytest.approx(0.4)
    assert at_tokens(points, 800) == pytest.approx(0.9)
    assert at_tokens(points, 99) == pytest.approx(0.2)  # within two percent of the end
    assert at_tokens(points, 810) == pytest.approx(0.9)
    assert at_tokens(points, 90) is None
    assert at_tokens(points, 900) is None
    assert at_tokens([], 100) is None
