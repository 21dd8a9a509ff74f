import pytest

from palmette.search.answer import Ballot, aggregate_scores, ballots, elect
from palmette.tree import Tree


def test_scores_are_aggregated_to_hand_worked_numbers() -> None:
    scores = [0.5, 0.25, 0.8]
    assert aggregate_scores(scores, "last") == 0.8
    assert aggregate_scores(scores, "min") == 0.25
    assert aggregate_scores(scores, "mean") == pytest.approx(1.55 / 3)
    assert aggregate_scores(scores, "prod") == pytest.approx(0.1)
    assert aggregate_scores([], "prod") == 1.0


CAST = [
    Ballot(1, "7", "7", 0.30),
    Ballot(2, "7.0", "7", 0.25),
    Ballot(3, "9", "9", 0.60),
    Ballot(4, "8", "8", 0.60),
]


def test_each_vote_elects_its_own_winner_and_gives_its_oldest_ballot() -> None:
    assert elect(CAST, "best") == CAST[2]  # 0.60 twice: the older leaf
    assert elect(CAST, "majority") == CAST[0]  # 7 twice: as the older leaf wrote it
    assert elect(CAST, "weighted") == CAST[2]  # 0.60 against 0.55
    assert elect([], "majority") is None


def test_a_tie_goes_to_the_older_leaf() -> None:
    assert elect([CAST[2], CAST[0]], "majority") == CAST[2]


def test_where_every_score_is_0_the_weighted_vote_counts_leaves() -> None:
    lonely = Ballot(1, "8", "8", 0.0)
    rest = [Ballot(leaf, "7", "7", 0.0) for leaf in range(2, 17)]
    assert elect([lonely, *rest], "weighted") == rest[0]
    assert elect([Ballot(1, "8", "8", 1e-300), *rest], "weighted") == Ballot(1, "8", "8", 1e-300)


def test_only_finished_leaves_with_an_answer_vote() -> None:
    tree = Tree((1,))
    for text, finished in (("a=1", True), ("b=2", False), ("none", True)):
        tree.add(0, (2,), text, (0.0,), finished=finished).score = 0.5
    extract = {"a=1": "1", "b=2": "2"}.get
    assert ballots(tree, "last", extract, str) == [Ballot(1, "1", "1", 0.5)]
