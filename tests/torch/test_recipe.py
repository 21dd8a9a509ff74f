import random

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.tasks import ladder
from palmette.train.supervised.measures import auc
from recipes.seedling.policy import collate, encode, solution_loss
from recipes.seedling.reward import judge


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


PROBLEM = ladder.solve("(3+4)*2-5")


@pytest.mark.parametrize(
    ("answer", "labels", "solved"),
    [
        ("3+4=7\n7*2=14\n14-5=9<eos>", [True, True, True], True),
        ("3+4=8\n8*2=16\n16-5=11<eos>", [False, True, True], False),
        ("3+4=7\n7*2=14<eos>", [True, False], False),  # right so far, but it ends too soon
        ("3+4=7\n2*5=10\n7-5=2<eos>", [True, False, False], False),
        ("3+4=7\n7*2=14\n14-5=9\n9<eos>", [True, True, True, False], False),
        ("3+4=7\n7*2", [True], False),
    ],
)
def test_lines_are_labeled_by_what_they_follow_from(
    tokenizer: PreTrainedTokenizerFast, answer: str, labels: list[bool], solved: bool
) -> None:
    sample = judge(tokenizer, PROBLEM, tokenizer.encode(answer, add_special_tokens=False))
    assert list(sample.labels.values()) == labels
    assert sample.solved == solved
    ends = {"<eos>", "\n"}
    assert all(tokenizer.decode([sample.tokens[place]]) in ends for place in sample.labels)


def test_the_loss_covers_the_solution_and_nothing_else(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [encode(tokenizer, PROBLEM), encode(tokenizer, ladder.solve("1+2"))]
    with torch.no_grad():
        loss = float(solution_loss(policy, *collate(rows, tokenizer.pad_token_id)))
        total, count = 0.0, 0
        for tokens, prompt in rows:
            logprobs = policy(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
            for place in range(prompt, len(tokens)):
                total -= float(logprobs[place - 1, tokens[place]])
                count += 1
    assert loss == pytest.approx(total / count, rel=0.02)  # the body runs in bfloat16
