import pytest
import torch
from transformers import LlamaForTokenClassification, PreTrainedTokenizerFast

from palmette.errors import BackendError, ConfigError
from palmette.score.prm import PrmScorer
from palmette.score.scorer import Candidate

ASKED = ({"role": "user", "content": "(3+4)*2"},)
CANDIDATES = [
    Candidate(ASKED, ("3+4=7\n",), False),
    Candidate(ASKED, ("3+4=7\n", "7*2=14"), True),
    Candidate(({"role": "user", "content": "1+1"},), ("1+1=3",), True),
    Candidate(ASKED, ("3+4=7\n", "7*2=15\n"), False),
]


@torch.inference_mode()
def slow(reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast, candidate: Candidate) -> float:
    text = f"<bos>{candidate.messages[0]['content']}\n{''.join(candidate.steps)}" + "<eos>" * candidate.finished
    tokens = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    return float(reward(input_ids=tokens).logits[0, -1, 0].sigmoid())


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_scores_are_read_at_the_last_token_of_the_step(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast, rows: int
) -> None:
    expected = [slow(reward, tokenizer, candidate) for candidate in CANDIDATES]
    scorer = PrmScorer(reward, tokenizer, batch_rows=rows)
    assert scorer.score(CANDIDATES) == pytest.approx(expected, abs=1e-5)
    assert scorer.calls == -(-len(CANDIDATES) // rows)
    assert len(set(expected)) == len(expected)


def test_a_solution_too_long_for_the_reward_model_is_refused(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(ConfigError, match="reward model, which takes 512: lower search.total_tokens by 97"):
        PrmScorer(reward, tokenizer, batch_rows=4).score([Candidate(ASKED, ("1" * 600,), False)])


def test_scores_that_are_not_finite_are_an_error(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    broken = LlamaForTokenClassification(reward.config)
    with torch.no_grad():
        broken.score.weight.fill_(float("nan"))
    with pytest.raises(BackendError, match="not finite"):
        PrmScorer(broken.eval(), tokenizer, batch_rows=4).score(CANDIDATES)
