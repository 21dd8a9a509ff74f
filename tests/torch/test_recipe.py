import random
from fractions import Fraction
from functools import reduce
from itertools import islice
from operator import add, mul, sub, truediv

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from palmette import Searcher, load_task
from palmette.tasks import ladder
from palmette.tasks.words.generate import problems
from palmette.tasks.words.solution import solve
from palmette.train.supervised.measures import auc
from recipes import words
from recipes.sapling.sums import sums
from recipes.seedling.rows import labeled, solutions
from recipes.seedling.untrained import new_policy
from recipes.seedling_words import untrained
from recipes.seedling_words.alphabet import alphabet
from recipes.seedling_words.deeper import deeper


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


def test_a_deeper_model_says_the_same_until_it_is_trained() -> None:
    tokenizer = alphabet()
    model = untrained.new_policy(tokenizer, 0, 64, 2)
    grown = deeper(model, tokenizer, 2, seed=1)
    tokens = torch.tensor([tokenizer.encode("The hotel has exactly 3 hats.")])
    expected, said = model(tokens).logits, grown(tokens).logits
    assert len(grown.model.layers) == 4
    torch.testing.assert_close(said, expected)
    said.sum().backward()
    last = grown.model.layers[3].self_attn.o_proj.weight.grad
    assert last is not None and last.abs().max() > 0  # What adds nothing yet learns all the same.


PROBLEM = "Tom has 7 pens. Mia has 5 more coins than Tom has pens. How many coins does Mia have?\nGo step by step."
FIRST = "Mia has 5 more coins than Tom has pens: Tom has 7 pens, so Mia has 7+5=12 coins.\n"


@pytest.mark.parametrize(
    ("lines", "finished", "labels", "ends"),
    [
        ([FIRST, "Answer: 12"], True, [True, True], True),
        ([FIRST.replace("12", "13"), "Answer: 13"], True, [False, False], True),
        ([FIRST, FIRST, "Answer: 12"], True, [True, False, True], True),  # What is said again adds nothing.
        ([FIRST, "Answer: 1"], False, [True], False),  # Cut at the limit in the middle of a line.
        ([FIRST, "\n", "Answer: 12"], True, [True], False),  # Nothing can be said of an empty line.
    ],
)
def test_lines_of_word_problems_are_labeled_by_the_checker(
    lines: list[str], finished: bool, labels: list[bool], ends: bool
) -> None:
    row = words.labeled([{"role": "user", "content": PROBLEM}], lines, finished=finished)
    assert row is not None
    assert (row["labels"], row["finished"], len(row["completions"])) == (labels, ends, len(labels))


def test_every_solution_of_a_search_becomes_a_row_with_labels() -> None:
    task = load_task("words", questions=2, split="train", grade=1, generator={"plain": True})
    with Searcher("seedling-words", None, "best_of_n", width=3, total_tokens=120) as searcher:
        results = searcher.search(task)
    rows = list(words.labels_of(results))
    told = [result.tree.solution(leaf.id).split("\n") for result in results for leaf in result.leaves if leaf.finished]
    assert [row["completions"] for row in rows if row["finished"]] == told and len(rows) == 6
    assert all(len(row["labels"]) == len(row["completions"]) for row in rows)
    assert {row["prompt"][-1]["content"] for row in rows} == {
        result.question.messages[-1]["content"] for result in results
    }


def test_sums_are_right_and_their_prompt_has_the_left_sides() -> None:
    rows = list(islice(sums(0), 30))
    assert rows == list(islice(sums(0), 30)) != list(islice(sums(1), 30))
    signs = set()
    for row in rows:
        pairs = [line.split("=") for line in row["completion"].split("\n")]
        assert [left for left, _ in pairs] == row["prompt"].split() and len(pairs) == 12
        for left, result in pairs:
            sign = next(sign for sign in "+-*/" if sign in left)
            numbers = [Fraction(number) for number in left.split(sign)]
            assert reduce({"+": add, "-": sub, "*": mul, "/": truediv}[sign], numbers) == int(result)
            signs.add(sign)
    assert signs == set("+-*/")


def test_words_and_numbers_are_tokens_and_nothing_of_a_text_is_lost() -> None:
    tokenizer = alphabet()
    for problem in islice(problems(3, "train", 0), 20):
        text = "\n".join((problem.text, *solve(problem, random.Random(0), style="goals")))
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in tokens and tokenizer.decode(tokens) == text
    assert tokenizer.tokenize("Amy has 12*4=48 books.") == ["Amy", " has", " 12", "*", "4", "=", "48", " books", "."]
    asked = tokenizer.apply_chat_template([{"role": "user", "content": PROBLEM}], tokenize=False)
    assert asked == f"<bos>{PROBLEM.splitlines()[0]}\n"


def test_the_untrained_model_of_words_depends_on_its_seed_alone() -> None:
    tokenizer = alphabet()
    models = [untrained.new_policy(tokenizer, seed, width=64, layers=2) for seed in (0, 0, 1)]
    first, again, other = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not torch.equal(first["model.layers.0.mlp.up_proj.weight"], other["model.layers.0.mlp.up_proj.weight"])
    assert models[0].config.num_attention_heads == 2 and models[0].lm_head.weight is models[0].model.embed_tokens.weight
