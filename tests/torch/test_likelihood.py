import math
import random
from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.engine.pieces import Piece
from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError
from palmette.score.scorer import Candidate
from palmette.score.scorers.likelihood import LikelihoodScorer
from palmette.score.values import GRID

ASKED = ({"role": "user", "content": "(3+4)*2"},)
OTHER = ({"role": "user", "content": "1+1"},)


@torch.inference_mode()
def slow(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, candidate: Candidate) -> float:
    """Return the geometric mean of the chances of the last step's tokens, from one plain forward pass."""
    above = f"<bos>{candidate.messages[0]['content']}\n{''.join(candidate.steps[:-1])}"
    text = above + candidate.steps[-1] + "<eos>" * candidate.finished
    tokens = tokenizer.encode(text, add_special_tokens=False)
    start = len(tokenizer.encode(above, add_special_tokens=False))
    chances = policy(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    step = [float(chances[place - 1, tokens[place]]) for place in range(start, len(tokens))]
    return math.exp(sum(step) / len(step))


def random_candidates(seed: int, count: int) -> list[Candidate]:
    rng = random.Random(seed)
    lines = [f"{rng.randint(1, 9)}+{rng.randint(1, 9)}={rng.randint(1, 18)}\n" for _ in range(6)]
    return [
        Candidate(rng.choice([ASKED, OTHER]), tuple(rng.choices(lines, k=rng.randint(1, 5))), rng.random() < 0.3)
        for _ in range(count)
    ]


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_score_is_the_mean_chance_of_the_last_step(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: int
) -> None:
    candidates = random_candidates(0, 40)
    expected = [slow(policy, tokenizer, candidate) for candidate in candidates]
    scores = LikelihoodScorer(policy, tokenizer, batch_rows=rows).score(candidates)
    for score, true in zip(scores, expected, strict=True):
        assert math.log(score) == pytest.approx(math.log(true), abs=GRID / 2 + 1e-4)


def test_wave_by_wave_and_all_at_once_give_the_same_scores_to_the_bit(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    last = random_candidates(1, 60)
    by_wave = LikelihoodScorer(policy, tokenizer, batch_rows=7)
    for depth in range(1, 6):
        wave = [
            Candidate(each.messages, each.steps[:depth], each.finished and len(each.steps) == depth)
            for each in last
            if len(each.steps) >= depth
        ]
        fresh = LikelihoodScorer(policy, tokenizer, batch_rows=64).score(wave[::-1])[::-1]
        assert by_wave.score(wave) == fresh
        by_wave.tree.cache.check_integrity()


def test_only_new_tokens_are_computed(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    run = TreeModel.run_every

    def watched(self: TreeModel, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        computed.append(sum(piece.last - piece.first for piece in pieces))
        return run(self, pieces)

    monkeypatch.setattr(TreeModel, "run_every", watched)
    scorer = LikelihoodScorer(policy, tokenizer, batch_rows=64)
    scorer.score([Candidate(ASKED, ("3+4=7\n",), False)])
    scorer.score([Candidate(ASKED, ("3+4=7\n", "7*2=14"), True)] * 3)
    assert computed == [len("b(3+4)*2\n3+4=7"), len("\n7*2=14")]  # one token a character; the last waits


def test_a_text_that_is_expected_scores_above_one_that_is_not(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt = torch.tensor([tokenizer.encode("<bos>(3+4)*2\n", add_special_tokens=False)])
    best = tokenizer.decode(policy(input_ids=prompt).logits[0, -1].argsort(descending=True)[:12].tolist())
    letters = [letter for letter in best if letter in "0123456789+-*()="]
    first, last = (
        LikelihoodScorer(policy, tokenizer, batch_rows=1).score([Candidate(ASKED, (letter,), False)])[0]
        for letter in (letters[0], letters[-1])
    )
    assert first > last


def test_weights_that_are_damaged_are_told(tokenizer: PreTrainedTokenizerFast, policy: LlamaForCausalLM) -> None:
    import copy

    broken = copy.deepcopy(policy)
    scorer = LikelihoodScorer(broken, tokenizer, batch_rows=4)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(BackendError, match="not finite"):
        scorer.score([Candidate(ASKED, ("1+1=2\n",), False)])


@pytest.fixture
def merging() -> PreTrainedTokenizerFast:
    """Return a tokenizer that merges across the end of a step: "1" before "2" is one token."""
    letters = {token: place for place, token in enumerate(["<bos>", "<eos>", *"0123456789+-=*()\n", "12", "122"])}
    tokenizer = Tokenizer(models.BPE(letters, [("1", "2"), ("12", "2")]))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    wrapped.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}="
    return wrapped


def test_equal_texts_of_other_steps_do_not_change_each_other_s_scores(
    policy: LlamaForCausalLM, merging: PreTrainedTokenizerFast
) -> None:
    splits = [("3+1", "2=15\n"), ("3+", "12=15\n"), ("3+12", "=15\n"), ("3+12=1", "5\n"), ("3+1", "22", "=15\n")]
    candidates = [Candidate(ASKED, steps, finished=False) for steps in splits]
    alone = [LikelihoodScorer(policy, merging, batch_rows=4).score([each])[0] for each in candidates]
    assert LikelihoodScorer(policy, merging, batch_rows=4).score(candidates) == alone
    by_wave = LikelihoodScorer(policy, merging, batch_rows=4)
    for depth in (1, 2):
        by_wave.score([Candidate(ASKED, steps[:depth], finished=False) for steps in splits])
    assert by_wave.score([candidates[-1]]) == alone[-1:]
    by_wave = LikelihoodScorer(policy, merging, batch_rows=4)
    by_wave.score([Candidate(ASKED, steps[:1], finished=False) for steps in splits])
    assert by_wave.score(candidates[:-1]) == alone[:-1]


def test_a_step_that_changes_the_token_before_it_is_scored_from_there(
    policy: LlamaForCausalLM, merging: PreTrainedTokenizerFast
) -> None:
    """The tokens of "3+1" and "3+12" differ in their last: the step "2" is the token "12"."""
    text, chosen = "<bos>(3+4)*2=3+12", merging.convert_tokens_to_ids("12")
    tokens = merging.encode(text, add_special_tokens=False)
    assert tokens[-1] == chosen
    with torch.inference_mode():
        true = float(policy(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)[-2, chosen])
    [score] = LikelihoodScorer(policy, merging, batch_rows=1).score([Candidate(ASKED, ("3+1", "2"), finished=False)])
    assert math.log(score) == pytest.approx(true, abs=GRID / 2 + 1e-4)
