import copy
import random

import pytest
import torch
from transformers import LlamaForTokenClassification, PreTrainedTokenizerFast

from palmette.backends.backend import TakesWeights
from palmette.engine.pieces import Piece
from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError, ConfigError
from palmette.memory.guard import GivesUpCache
from palmette.memory.oom import TellsCacheFull
from palmette.score.scorer import Candidate, ReadsPrompts
from palmette.score.scorers.head import PrmScorer
from palmette.score.values import GRID

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


def test_a_scorer_inside_the_process_tells_by_its_contracts_what_it_can_do_beyond_a_search(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    scorer: object = PrmScorer(reward, tokenizer, batch_rows=4)
    assert isinstance(scorer, TakesWeights) and scorer.weight_version == 0
    assert isinstance(scorer, TellsCacheFull) and scorer.cache_full is None
    assert isinstance(scorer, GivesUpCache)
    assert isinstance(scorer, ReadsPrompts)
    scorer.check_prompt(ASKED)
    with pytest.raises(ConfigError, match="a question holds '<eos>', a control token of the model"):
        scorer.check_prompt(({"role": "user", "content": "1+1<eos>"},))


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_scores_are_read_at_the_last_token_of_the_step(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast, rows: int
) -> None:
    expected = [slow(reward, tokenizer, candidate) for candidate in CANDIDATES]
    scores = PrmScorer(reward, tokenizer, batch_rows=rows).score(CANDIDATES)
    assert scores == pytest.approx(expected, abs=GRID / 8 + 1e-5)  # half a grid step, at the sigmoid's steepest
    assert len(set(expected)) == len(expected)


def test_scores_are_the_same_to_the_bit_whatever_is_scored_beside_them(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    many = [Candidate(ASKED, (f"3+4={number}\n",) * (1 + number % 5), number % 3 == 0) for number in range(300)]
    together = PrmScorer(reward, tokenizer, batch_rows=64).score(many)
    alone = PrmScorer(reward, tokenizer, batch_rows=1).score(many)
    backwards = PrmScorer(reward, tokenizer, batch_rows=7).score(many[::-1])[::-1]
    assert together == alone == backwards
    assert len(set(together)) > 20


def test_a_model_in_bfloat16_scores_each_batch_by_one_pass_though_its_outputs_lie_on_rounding_borders(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    narrow = copy.deepcopy(reward).bfloat16()
    with torch.no_grad():
        narrow.score.weight.zero_()
        narrow.score.bias = torch.nn.Parameter(torch.full((1,), 1 + GRID / 2, dtype=torch.bfloat16))
    scorer = PrmScorer(narrow, tokenizer, batch_rows=4)
    checked = scorer.calls
    scorer.score(CANDIDATES)
    assert scorer.calls == checked + 1
    exact = PrmScorer(copy.deepcopy(narrow).float(), tokenizer, batch_rows=4)
    checked = exact.calls
    exact.score(CANDIDATES)
    assert exact.calls == checked + 1 + len(CANDIDATES)


def test_equal_candidates_are_computed_once(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    scorer = PrmScorer(reward, tokenizer, batch_rows=1)
    scores = scorer.score([CANDIDATES[0]] * 5)
    assert len(set(scores)) == 1
    assert scorer.calls <= 2


def test_a_control_token_that_the_policy_spells_out_stays_text(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    spelled, ended = Candidate(ASKED, ("3+4=7<eos>",), False), Candidate(ASKED, ("3+4=7",), True)
    scores = PrmScorer(reward, tokenizer, batch_rows=4).score([spelled, ended])
    assert scores[0] != scores[1]


def test_a_solution_too_long_for_the_reward_model_scores_nothing(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert PrmScorer(reward, tokenizer, batch_rows=4).score([Candidate(ASKED, ("1" * 600,), False)]) == [0.0]


def test_scores_that_are_not_finite_are_an_error(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    broken = LlamaForTokenClassification(reward.config)
    with torch.no_grad():
        broken.score.weight.fill_(float("nan"))
    with pytest.raises(BackendError, match="not finite"):
        PrmScorer(broken.eval(), tokenizer, batch_rows=4).score(CANDIDATES)


def test_scores_wave_by_wave_equal_those_of_a_scorer_that_remembers_nothing(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> None:
    rng = random.Random(0)
    keeps = PrmScorer(reward, tokenizer, batch_rows=16)
    paths: list[tuple[str, ...]] = [()]
    for _ in range(4):
        grown = [
            Candidate(
                ASKED, (*path, f"{rng.randrange(50)}+{rng.randrange(50)}\n" * rng.randrange(3)), rng.random() < 0.3
            )
            for path in paths
            for _ in range(4)
        ]
        assert keeps.score(grown) == PrmScorer(reward, tokenizer, batch_rows=16).score(grown)
        keeps.tree.cache.check_integrity()
        paths = [candidate.steps for candidate in grown if not candidate.finished][:6]


def test_only_new_tokens_are_computed_and_the_last_wave_of_each_question_is_kept_until_it_is_forgotten(
    reward: LlamaForTokenClassification, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = PrmScorer(reward, tokenizer, batch_rows=16)
    computed = []
    run = TreeModel.run

    def watched(self: TreeModel, pieces: list[Piece]) -> torch.Tensor:
        computed.append(sum(piece.last - piece.first for piece in pieces))
        return run(self, pieces)

    monkeypatch.setattr(TreeModel, "run", watched)
    scorer.score([Candidate(ASKED, ("3+4=7\n",), False)])
    scorer.score([Candidate(ASKED, ("3+4=7\n", "7*2=14\n"), False), Candidate(ASKED, ("3+4=7\n", "7*2"), True)])
    assert computed == [len("_(3+4)*2\n3+4=7\n"), len("7*2=14\n") + len("7*2_")]  # a token for each character
    other = ({"role": "user", "content": "1+1"},)
    scorer.score([Candidate(other, ("1+1=2",), True)])
    pool = scorer.tree.cache.pool
    # The prompt of this question, and the path of the other one that can go on.
    assert pool.taken_bytes == pool.shape.token_bytes * (len("_1+1\n") + len("_(3+4)*2\n3+4=7\n7*2=14\n"))
    scorer.score([Candidate(ASKED, ("3+4=7\n", "7*2=14\n", "14\n"), False)])
    assert computed[3:] == [len("14\n")]  # as if nothing had been asked in between
    scorer.forget(ASKED)
    assert pool.taken_bytes == pool.shape.token_bytes * len("_1+1\n")
    scorer.forget(other)
    scorer.forget(other)
    assert pool.taken_bytes == 0
