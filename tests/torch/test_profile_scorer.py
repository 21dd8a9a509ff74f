"""Tiny reward models of the published kinds, scored on the engine and by plain forward passes."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from palmette.config import load_config
from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError, ConfigError
from palmette.profiles.find import read_profile
from palmette.run.parts import load_scorer
from palmette.score import tree_scorer, values
from palmette.score.rows.profile_prompt import Renderer
from palmette.score.scorer import Candidate
from palmette.score.scorers.profile import ProfileScorer
from palmette.zoo.load_headed import load_reward_tokenizer
from tests.reward_models import llama_tokenizer, newline_tokenizer, qwen_prm_tokenizer, save, shepherd_tokenizer, tiny

Any_: Any = transformers
QUESTION = "How many hens?"
ASKED = ({"role": "user", "content": QUESTION + "\n\nAnswer in steps."},)
Slow = Callable[[torch.Tensor, int], float]
"""The score at one of a row's tokens, by a plain forward pass of another model with the same weights."""


def token_prm(folder: Path) -> Slow:
    tokenizer = shepherd_tokenizer()
    model = Any_.MistralForCausalLM(tiny("MistralConfig", tokenizer)).eval()
    save(model, tokenizer, folder)
    return lambda tokens, place: float(model(tokens).logits[0, place, [648, 387]].softmax(0)[0])


def turns_prm(folder: Path) -> Slow:
    tokenizer = llama_tokenizer()
    model = Any_.LlamaForCausalLM(tiny("LlamaConfig", tokenizer, tie_word_embeddings=True)).eval()
    save(model, tokenizer, folder)
    return lambda tokens, place: float(model(tokens).logits[0, place, [10, 12]].softmax(0)[0])


def process_reward_model(folder: Path) -> Slow:
    tokenizer = qwen_prm_tokenizer()
    body = Any_.Qwen2Model(tiny("Qwen2Config", tokenizer)).eval()
    layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    head = {f"score.{name}": tensor for name, tensor in layers.state_dict().items()}
    classifier = Any_.Qwen2ForTokenClassification(body.config)
    classifier.model = body
    remote = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForTokenClassification"), "modeling_qwen2_rm.Model")
    save(classifier, tokenizer, folder, head, architectures=["Qwen2ForProcessRewardModel"], auto_map=remote)
    (folder / "modeling_qwen2_rm.py").write_text("raise SystemExit('remote code was run')")
    return lambda tokens, place: float(layers(body(tokens).last_hidden_state)[0, place].softmax(0)[1])


def value_head(folder: Path) -> Slow:
    tokenizer = newline_tokenizer()
    causal = Any_.Qwen2ForCausalLM(tiny("Qwen2Config", tokenizer)).eval()
    summary = torch.nn.Linear(16, 1)
    head = {f"v_head.summary.{name}": tensor for name, tensor in summary.state_dict().items()}
    save(causal, tokenizer, folder, head, architectures=["Qwen2ForPrmModel"])
    return lambda tokens, place: float(summary(causal.model(tokens).last_hidden_state)[0, place].sigmoid())


def trl_classifier(folder: Path) -> Slow:
    tokenizer = newline_tokenizer(None)
    model = Any_.Qwen2ForTokenClassification(tiny("Qwen2Config", tokenizer, num_labels=2)).eval()
    save(model, tokenizer, folder)
    return lambda tokens, place: float(model(tokens).logits[0, place].softmax(0)[1])


def spaced_token_prm(folder: Path) -> Slow:
    tokenizer = llama_tokenizer((" ки", " +", " -"))
    good, bad = (tokenizer.convert_tokens_to_ids(token) for token in ("Ġ+", "Ġ-"))
    model = Any_.LlamaForCausalLM(tiny("LlamaConfig", tokenizer)).eval()
    save(model, tokenizer, folder)
    return lambda tokens, place: float(model(tokens).logits[0, place, [good, bad]].softmax(0)[0])


KINDS: dict[str, tuple[str, Callable[[Path], Slow]]] = {
    "math-shepherd-mistral-7b-prm": ("math-shepherd", token_prm),
    "Llama3.1-8B-PRM-Deepseek-Data": ("rlhflow", turns_prm),
    "Qwen2.5-Math-PRM-7B": ("qwen2.5-math-prm", process_reward_model),
    "Skywork-o1-Open-PRM-Qwen-2.5-1.5B": ("skywork-o1-prm", value_head),
    "Qwen2-0.5B-Reward-Math-Sheperd": ("trl", trl_classifier),
    "Llama3.1-Math-PRM": ("er-prm", spaced_token_prm),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, Slow]]:
    """Return a function that gives the folder of a kind of model, and its slow scores; each is made once."""
    root = tmp_path_factory.mktemp("rewards")
    known: dict[str, tuple[str, Slow]] = {}

    def make(name: str) -> tuple[str, Slow]:
        if name not in known:
            torch.manual_seed(len(known))
            known[name] = str(root / name), KINDS[name][1](root / name)
        return known[name]

    return make


def loaded(folder: str, **settings: Any) -> ProfileScorer:
    overrides = {"reward.model": folder, **{f"reward.{key}": value for key, value in settings.items()}}
    scorer = load_scorer(load_config(None, overrides).reward)
    assert isinstance(scorer, ProfileScorer)
    return scorer


def paths(seed: int, waves: int = 3) -> list[list[Candidate]]:
    """Return waves of candidates, each below some of the wave before it; some steps are empty, or of two lines."""
    rng = random.Random(seed)
    grown: list[list[Candidate]] = []
    parents: list[tuple[str, ...]] = [()]
    for _ in range(waves):
        wave = [
            Candidate(ASKED, (*path, rng.choice(["{}+{} hens.\n\n", "So {}\nor {}.\n\n", ""]).format(
                rng.randrange(9), rng.randrange(9))), rng.random() < 0.2, QUESTION)
            for path in parents for _ in range(3)
        ]  # fmt: skip
        grown.append(wave)
        parents = [candidate.steps for candidate in wave if not candidate.finished][:4]
    return grown


@torch.inference_mode()
def slow_score(slow: Slow, profile: str, folder: str, candidate: Candidate) -> float:
    found = Renderer(read_profile(profile), load_reward_tokenizer(folder)).render(QUESTION, candidate.steps)
    return slow(torch.tensor([found.tokens]), found.read_at[-1])


@pytest.mark.parametrize("name", KINDS)
def test_scores_on_the_engine_are_those_of_a_plain_forward_pass_over_the_whole_text(
    name: str, made: Callable[[str], tuple[str, Slow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "GRID", 2.0**-24)  # No rounding, and nothing is computed again alone.
    monkeypatch.setattr(tree_scorer, "NARROW", 0.0)
    folder, slow = made(name)
    scorer = loaded(folder)
    seen = []
    for wave in paths(seed=3):
        expected = [slow_score(slow, KINDS[name][0], folder, candidate) for candidate in wave]
        assert scorer.score(wave) == pytest.approx(expected, abs=1e-5)
        scorer.tree.cache.check_integrity()
        seen += expected
    assert len({round(score, 4) for score in seen}) > 8
    scorer.forget(ASKED)
    assert scorer.tree.cache.pool.taken_bytes == 0


@pytest.mark.parametrize("name", KINDS)
def test_scores_do_not_depend_on_the_batch_or_on_what_was_scored_before(
    name: str, made: Callable[[str], tuple[str, Slow]]
) -> None:
    folder, _ = made(name)
    keeps = loaded(folder)
    for wave in paths(seed=5):
        assert keeps.score(wave) == loaded(folder, batch_rows=2).score(wave[::-1])[::-1]


def test_only_new_tokens_are_computed(made: Callable[[str], tuple[str, Slow]], monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = loaded(made("Qwen2.5-Math-PRM-7B")[0])
    computed: list[int] = []
    run = TreeModel.run

    def watched(self: TreeModel, pieces: Any) -> torch.Tensor:
        computed.append(sum(piece.last - piece.first for piece in pieces))
        return run(self, pieces)

    monkeypatch.setattr(TreeModel, "run", watched)
    scorer.score([Candidate(ASKED, ("1+1=2.\n\n",), False, QUESTION)])
    scorer.score([Candidate(ASKED, ("1+1=2.\n\n", f"{number} hens.\n\n"), False, QUESTION) for number in (2, 3)])
    assert computed[1:] == [2 * (len("2 hens.") + 1)]  # a token for each character, and the tag


def test_the_reward_model_is_asked_the_question_alone_where_it_is_known(
    made: Callable[[str], tuple[str, Slow]],
) -> None:
    scorer = loaded(made("math-shepherd-mistral-7b-prm")[0])
    alone = ({"role": "user", "content": QUESTION},)
    steps = ("2 hens.",)
    with_text, as_message, whole = scorer.score(
        [
            Candidate(ASKED, steps, True, QUESTION),
            Candidate(alone, steps, True),
            Candidate(({**ASKED[0]},) * 2, steps, True),
        ]
    )
    assert with_text == as_message != whole


def test_two_outputs_are_all_that_a_token_prm_computes(made: Callable[[str], tuple[str, Slow]]) -> None:
    folder, _ = made("Llama3.1-8B-PRM-Deepseek-Data")
    scorer = loaded(folder)
    assert scorer.tree.run_alone([1, 2, 3]).shape == (1, 2)
    rounded = loaded(folder, quantize="int8").score(paths(1)[0])
    assert rounded == pytest.approx(scorer.score(paths(1)[0]), abs=0.2)


def test_a_published_model_is_read_by_its_profile_and_any_other_as_before(
    made: Callable[[str], tuple[str, Slow]], tmp_path: Path
) -> None:
    folder, _ = made("Qwen2-0.5B-Reward-Math-Sheperd")
    other = tmp_path / "mine"
    other.symlink_to(folder)
    with pytest.raises(BackendError, match="2 labels per token, not 1.*--set reward.profile=trl"):
        load_scorer(load_config(None, {"reward.model": str(other)}).reward)
    scorer = loaded(str(other), profile="trl")
    assert scorer.score(paths(2)[0]) == loaded(folder).score(paths(2)[0])


def test_a_profile_of_ones_own_is_a_file(made: Callable[[str], tuple[str, Slow]], tmp_path: Path) -> None:
    folder, _ = made("Qwen2-0.5B-Reward-Math-Sheperd")
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        'layout: text\nprompt: "{question}\\n"\ntag: "\\n"\ntokenized: apart\nread: {kind: labels, good: 0}\n'
    )
    scores = loaded(folder, profile=str(mine)).score(paths(2)[0])
    assert scores == pytest.approx([1 - score for score in loaded(folder, profile="trl").score(paths(2)[0])], abs=1e-6)


def test_a_scalar_head_is_read_at_the_tag_of_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "GRID", 2.0**-24)
    monkeypatch.setattr(tree_scorer, "NARROW", 0.0)
    torch.manual_seed(9)
    tokenizer = qwen_prm_tokenizer()
    model = Any_.Qwen2ForTokenClassification(tiny("Qwen2Config", tokenizer, num_labels=1)).eval()
    folder, mine = save(model, tokenizer, tmp_path / "scalar"), tmp_path / "mine.yaml"
    mine.write_text("layout: chat\nprompt: 'Problem: {question}'\ntag: <extra_0>\nbetween: ' '\nread: {kind: value}\n")
    text = "<|im_start|>user\nProblem: How many hens?<|im_end|>\n<|im_start|>assistant\n1+1.<extra_0> So 2.<extra_0>"
    with torch.inference_mode():
        tokens = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        expected = float(model(tokens).logits[0, -1, 0].sigmoid())
    steps = ("1+1.\n\n", "So 2.\n\n")
    assert loaded(folder, profile=str(mine)).score([Candidate(ASKED, steps, True, QUESTION)]) == pytest.approx(
        [expected], abs=1e-5
    )


@pytest.mark.parametrize(
    ("name", "profile", "said"),
    [
        ("Qwen2-0.5B-Reward-Math-Sheperd", "{kind: value}",
         "its head score gives 2 numbers per token, the profile reads 1"),
        ("Qwen2-0.5B-Reward-Math-Sheperd", "{kind: value, weights: v_head}",
         "its weights have no v_head.weight and no v_head.0.weight with v_head.2.weight"),
        ("Qwen2-0.5B-Reward-Math-Sheperd", "{kind: tokens, good: '+', bad: '-'}", "which generates no text"),
    ],
)  # fmt: skip
def test_a_model_without_the_head_that_the_profile_reads_is_refused(
    name: str, profile: str, said: str, made: Callable[[str], tuple[str, Slow]], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f'layout: text\ntag: "\\n"\ntokenized: apart\nread: {profile}\n')
    with pytest.raises(BackendError, match=said):
        loaded(made(name)[0], profile=str(mine))


def test_a_model_with_a_tokenizer_that_is_not_its_own_is_refused_before_its_weights_are_read(
    made: Callable[[str], tuple[str, Slow]], tmp_path: Path
) -> None:
    folder = tmp_path / "math-shepherd-mistral-7b-prm"
    save(Any_.MistralForCausalLM(tiny("MistralConfig", llama_tokenizer())), llama_tokenizer(), folder)
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="does not fit the tokenizer of .*: the tag ' ки' is 5 tokens, not one"):
        load_scorer(load_config(None, {"reward.model": str(folder)}).reward)


def test_a_language_model_named_like_a_model_with_a_head_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen2.5-Math-PRM-7B"
    tokenizer = qwen_prm_tokenizer()
    save(Any_.Qwen2ForCausalLM(tiny("Qwen2Config", tokenizer)), tokenizer, folder)
    assert not [name for name in load_file(folder / "model.safetensors") if name.startswith("score")]
    with pytest.raises(BackendError, match="its weights have no score.weight"):
        load_scorer(load_config(None, {"reward.model": str(folder)}).reward)
