import random
from itertools import islice

import pytest
from transformers import PreTrainedTokenizerFast

from palmette.tasks import ladder
from palmette.train.supervised.measures import auc
from recipes.seedling.rows import labeled, solutions
from recipes.seedling.untrained import new_policy


def test_auc_is_the_share_of_pairs_in_order() -> None:
    assert auc([0.9, 0.8, 0.3, 0.1], [True, False, True, False]) == 0.75
    assert auc([0.5, 0.5], [True, False]) == 0.5
    generator = random.Random(0)
    scores = [round(generator.random(), 1) for _ in range(60)]
    labels = [generator.random() < 0.5 for _ in range(60)]
    pairs = [
        (right > wrong) + (right == wrong) / 2
        for right, is_right in zip(scores, labels, strict=True)
        if is_right
        for wrong, is_right_too in zip(scores, labels, strict=True)
        if not is_right_too
    ]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(
    ("lines", "finished", "labels", "ends"),
    [
        (["3+4=7\n", "7*2=14\n", "14-5=9"], True, [True, True, True], True),
        (["3+4=8\n", "8*2=16\n", "16-5=11"], True, [False, True, True], True),
        (["3+4=7\n", "7*2=14"], True, [True, False], True),  # Right so far, but it ends too soon.
        (["3+4=7\n", "2*5=10\n", "7-5=2"], True, [True, False, False], True),
        (["3+4=7\n", "7*2=14\n", "14-5=9\n", "9"], True, [True, True, True, False], True),
        (["3+4=7\n", "7*2"], False, [True], False),  # Cut at the limit in the middle of a line.
        (["3+4=7\n", "\n", "7*2=14"], True, [True], False),  # Nothing can be said of an empty line.
    ],
)
def test_lines_are_labeled_by_what_they_follow_from(
    lines: list[str], finished: bool, labels: list[bool], ends: bool
) -> None:
    row = labeled("(3+4)*2-5", lines, finished=finished)
    assert row is not None
    assert (row["labels"], row["finished"], len(row["completions"])) == (labels, ends, len(labels))


def test_a_solution_without_a_whole_line_makes_no_row() -> None:
    assert labeled("1+2", ["1+"], finished=False) is None


def test_rows_are_training_problems_with_their_solutions_and_the_same_for_the_same_seed() -> None:
    rows = list(islice(solutions(3), 50))
    assert rows == list(islice(solutions(3), 50)) != list(islice(solutions(4), 50))
    for row in rows:
        assert ladder.split_of(row["prompt"]) == "train"
        assert row["completion"] == "\n".join(ladder.solve(row["prompt"]).lines)


def test_the_untrained_policy_depends_on_its_seed_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    weights = [new_policy(tokenizer, seed).model.embed_tokens.weight for seed in (0, 0, 1)]
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])
