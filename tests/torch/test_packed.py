"""An update that computes shared prefixes once has the gradients of the one that does not."""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from palmette.memory.guard import RunPieces
from palmette.train.model_parts import train_all, train_lora
from palmette.train.packed.sharing import Sharing
from palmette.train.samples import Sample
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.loss import LossSettings, PolicyLoss, PolicyLosses, no_policy_losses
from palmette.train.update.optimizer import AdamSettings
from palmette.train.update.reference import response_logprobs, response_values
from palmette.train.update.token_batch import TokenBatch

LOSS = LossSettings(clip_low=0.1, clip_high=0.3, kl_weight=0.05, entropy_weight=0.02)
TINY: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.3,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "gemma2": ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 5, "layer_types": None}),
    "mistral": ("mistral", {"sliding_window": 4}),
    "gpt2": (
        "gpt2",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0},
    ),
}


def exact(model: Any) -> Any:
    """Return the model in float64, its norms too: transformers computes them in float32 whatever the weights are."""
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _norm.__get__(module)
    return model


def _norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    plain = "Gemma" not in type(self).__name__
    eps = self.variance_epsilon if plain else self.eps
    scaled: torch.Tensor = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps)
    return scaled * (self.weight if plain else 1 + self.weight)


def model_of(kind: str, *, lora: bool = False) -> Any:
    torch.manual_seed(0)
    family, changes = KINDS[kind]
    config = CONFIG_MAPPING[family](**{**TINY, **changes})
    # Eager attention computes its softmax in float32, SDPA ignores Gemma 2's softcap: without one they can be compared.
    if family == "gemma2":
        config.attn_logit_softcapping = None
    model = AutoModelForCausalLM.from_config(config)
    return train_lora(model, rank=4) if lora else train_all(model)


def tree(seed: int, *, letters: int = 3, count: int = 14, longest: int = 6) -> list[Sample]:
    """Samples that share their first tokens more often than not: prompts, begun responses, steps below steps."""
    rng = random.Random(seed)

    def tokens() -> tuple[int, ...]:
        return tuple(10 + rng.randrange(letters) for _ in range(rng.randint(1, longest)))

    samples: list[Sample] = []
    for place in range(count):
        above = rng.choice(samples) if samples and rng.random() < 0.8 else None
        prompt = tokens() if above is None else rng.choice([above.prompt, above.prompt + above.response])
        response = tokens()
        size = len(response)
        mask = [rng.random() < 0.7 for _ in response]
        mask[rng.randrange(size)] = True
        samples.append(
            Sample(
                prompt,
                response,
                tuple(rng.gauss(0, 1) for _ in response),
                place // 3,
                old_logprobs=tuple(rng.gauss(-3, 0.5) for _ in response),
                reference_logprobs=tuple(rng.gauss(-3, 0.5) for _ in response),
                mask=tuple(mask) if rng.random() < 0.5 else None,
                weight=rng.choice([1.0, 0.25, 2.0]),
            )
        )
    return samples


def by_sequence(tokens: TokenBatch) -> PolicyLosses:
    """A loss by sequence, as GSPO's: no token's loss without all log-probabilities of its sample."""
    assert tokens.old_T is not None
    count = int(tokens.sequence_T[-1]) + 1
    sums = torch.zeros(count, dtype=tokens.logprobs_T.dtype)
    sums = sums.index_add(0, tokens.sequence_T, tokens.logprobs_T - tokens.old_T)
    ratios_T = (sums / tokens.sequence_T.bincount()).exp()[tokens.sequence_T]
    loss_T = -ratios_T * tokens.advantages_T
    return PolicyLosses(loss_T, ratios_T.detach(), torch.zeros_like(loss_T.detach()))


def gradients(
    model: Any,
    samples: Sequence[Sample],
    *,
    tokens: int = 10_000,
    run_pieces: RunPieces | None = None,
    on_policy: bool = False,
    **options: Any,
) -> tuple[dict[str, torch.Tensor], list[float], int]:
    made = Learner(model, loss=LOSS, **options)
    assert not made.notes
    sums, pieces = made.accumulate(samples, micro_batch_tokens=tokens, run_pieces=run_pieces, on_policy=on_policy)
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    head = options.get("value_head")
    if head is not None:
        found |= {f"value head {name}": weight.grad for name, weight in head.named_parameters()}
    made.forget()
    return {name: grad for name, grad in found.items() if grad is not None}, sums.tolist(), pieces


def assert_same(ours: tuple[Any, ...], theirs: tuple[Any, ...], relative: float) -> None:
    (mine, my_sums, _), (others, other_sums, _) = ours, theirs
    assert mine.keys() == others.keys() and mine
    largest = max(float(grad.abs().max()) for grad in others.values())
    for name, grad in others.items():
        assert float((mine[name] - grad).abs().max()) <= relative * largest, name
    assert my_sums == pytest.approx(other_sums, rel=10 * relative, abs=10 * relative)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("sharing", ["packed", "depth_first"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_gradients_in_float64_are_those_of_the_rows(kind: str, sharing: str, checkpointing: bool) -> None:
    model, samples = exact(model_of(kind)), tree(1)
    rows = gradients(model, samples, sharing="off")
    longest = max(sample.fed_tokens for sample in samples)
    for tokens in (10_000, 2 * longest, longest):
        found = gradients(model, samples, tokens=tokens, sharing=sharing, savings=Savings(checkpointing=checkpointing))
        assert_same(found, rows, 1e-10)


@pytest.mark.parametrize("sharing", ["packed", "depth_first"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2"])
def test_gradients_in_float32_are_those_of_the_rows(kind: str, sharing: str) -> None:
    model, samples = model_of(kind), tree(2)
    rows = gradients(model, samples, sharing="off")
    assert_same(gradients(model, samples, tokens=40, sharing=sharing), rows, 1e-4)


@pytest.mark.parametrize("sharing", ["packed", "depth_first"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_gets_the_gradients_of_the_rows(sharing: str, checkpointing: bool) -> None:
    pytest.importorskip("peft")
    model, samples = exact(model_of("llama", lora=True)), tree(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:  # Zero at first, so that no gradient would reach lora_A.
                weight.normal_(generator=torch.Generator().manual_seed(0))
    rows = gradients(model, samples, sharing="off")
    assert all("lora_" in name for name in rows[0])
    found = gradients(model, samples, tokens=40, sharing=sharing, savings=Savings(checkpointing=checkpointing))
    assert_same(found, rows, 1e-10)


LLAMA = exact(model_of("llama"))


@settings(deadline=None, max_examples=10)
@given(
    st.builds(tree, st.integers(0, 10**6), letters=st.integers(1, 4), count=st.integers(1, 12)),
    st.integers(0, 30),
    st.sampled_from([None, by_sequence]),
    st.booleans(),
)
def test_any_trie_at_any_limit_has_the_gradients_of_the_rows(
    samples: list[Sample], more: int, loss: PolicyLoss | None, on_policy: bool
) -> None:
    on_policy = on_policy and loss is None
    rows = gradients(LLAMA, samples, sharing="off", policy_loss=loss, on_policy=on_policy)
    tokens = max(sample.fed_tokens for sample in samples) + more
    for sharing in ("packed", "depth_first", "auto"):
        found = gradients(LLAMA, samples, tokens=tokens, sharing=sharing, policy_loss=loss, on_policy=on_policy)
        assert_same(found, rows, 1e-10)


@pytest.mark.parametrize("sharing", ["off", "packed", "depth_first"])
def test_log_probabilities_are_those_of_the_rows_masked_tokens_included(sharing: Any) -> None:
    model, samples = exact(model_of("qwen2")), tree(4)
    longest = max(sample.fed_tokens for sample in samples)
    expected = response_logprobs(model, samples, micro_batch_tokens=10_000, sharing="off")
    for tokens in (10_000, longest):
        found = response_logprobs(model, samples, micro_batch_tokens=tokens, sharing=sharing)
        assert [len(row) for row in found] == [len(sample.response) for sample in samples]
        for row, plain in zip(found, expected, strict=True):
            assert row == pytest.approx(plain, abs=1e-12)


def test_each_distinct_prefix_goes_through_the_layers_once() -> None:
    model, samples = exact(model_of("llama")), tree(5)
    prefixes = {
        (sample.prompt + sample.response[:-1])[:length]
        for sample in samples
        for length in range(1, sample.fed_tokens + 1)
    }
    tokens: list[int] = []
    learner = Learner(model, loss=LOSS, sharing="depth_first")
    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0].shape[1]))
    longest = max(sample.fed_tokens for sample in samples)
    learner.accumulate(samples, micro_batch_tokens=longest)
    assert sum(tokens) == len(prefixes) < sum(sample.fed_tokens for sample in samples) / 2
    assert len(tokens) > 1 and max(tokens) <= longest


def halving(failed: list[int]) -> RunPieces:
    """Run a piece, and where memory runs out its halves."""

    def run(items: Sequence[Any], work: Any, **options: Any) -> list[Any]:
        try:
            return [work(items)]
        except MemoryError:
            failed.append(len(items))
        half = len(items) // 2
        return [*run(items[:half], work, **options), *run(items[half:], work, **options)]

    return run


@pytest.mark.parametrize("sharing", ["packed", "depth_first"])
@pytest.mark.parametrize("fatal", [{1}, {2}, {1, 2}, {2, 5}])
def test_a_backward_pass_that_dies_half_way_counts_nothing_twice(sharing: str, fatal: set[int]) -> None:
    model, samples = exact(model_of("llama")), tree(6)
    rows = gradients(model, samples, sharing="off")
    calls, failed = [0], list[int]()

    def die(gradient: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] in fatal:
            raise MemoryError
        return gradient

    hook = model.model.layers[0].mlp.up_proj.weight.register_hook(die)
    longest = max(sample.fed_tokens for sample in samples)
    found = gradients(model, samples, tokens=2 * longest, sharing=sharing, run_pieces=halving(failed))
    hook.remove()
    assert len(failed) == len(fatal)
    assert_same(found, rows, 1e-10)


def test_a_piece_of_half_the_samples_holds_half_the_tokens() -> None:
    model = exact(model_of("llama"))
    prompt = tuple(range(10, 20))
    samples = [Sample(prompt, (letter,) * 21, (1.0,) * 21) for letter in range(20, 36)]
    most: list[int] = []

    def in_halves(items: Sequence[Any], work: Any, **options: Any) -> list[Any]:
        half = len(items) // 2
        return [work(items[:half]), work(items[half:])]

    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: most.append(inputs[0].shape[1]))
    for run, expected in ((None, 6 * 20), (in_halves, 2 * 20)):
        learner = Learner(model, sharing="depth_first")
        most.clear()
        learner.accumulate(samples, micro_batch_tokens=130, run_pieces=run)
        assert max(most) == expected  # 130 or 65 tokens less the 10 of the prompt: six responses, or two.


@pytest.mark.parametrize("sharing", ["off", "packed", "depth_first"])
def test_values_of_a_critic_are_those_of_the_hidden_states_before_each_token(sharing: str) -> None:
    model = exact(model_of("llama"))
    rng = random.Random(0)
    samples = [
        replace(
            sample,
            old_values=tuple(rng.gauss(0, 1) for _ in sample.response),
            returns=tuple(rng.gauss(0, 1) for _ in sample.response),
        )
        for sample in tree(7)
    ]
    torch.manual_seed(1)
    head = torch.nn.Linear(32, 1).double()
    total = sum(sample.counted_tokens for sample in samples)
    expected = 0.0
    for sample in samples:
        row = torch.tensor([[*sample.prompt, *sample.response[:-1]]])
        values = head(model.model(row).last_hidden_state[0, len(sample.prompt) - 1 :])[:, 0]
        counted = torch.tensor(sample.mask or (True,) * len(sample.response))
        errors = (values - torch.tensor(sample.returns)).square()[counted]
        (sample.weight * errors.sum() / total).backward()
        expected += float(errors.detach().sum()) * sample.weight / total
    parts = [*model.named_parameters(), *head.named_parameters()]
    plain = {name: weight.grad for name, weight in parts if weight.grad is not None}
    model.zero_grad()
    head.zero_grad()

    def squared_errors(tokens: TokenBatch) -> PolicyLosses:
        assert tokens.values_T is not None and tokens.returns_T is not None and tokens.old_values_T is not None
        loss_T = (tokens.values_T - tokens.returns_T).square()
        nothing_T = torch.zeros_like(loss_T.detach())
        return PolicyLosses(loss_T, nothing_T + 1, nothing_T)

    learner = Learner(model, value_head=head, policy_loss=squared_errors, sharing=sharing)  # type: ignore[arg-type]
    sums, _ = learner.accumulate(samples, micro_batch_tokens=40)
    assert float(sums[0]) == pytest.approx(expected, rel=1e-6)
    for name, weight in parts:
        if name in plain:
            torch.testing.assert_close(weight.grad, plain[name], rtol=0, atol=1e-6)  # Returns are rounded above.
    before = head.weight.detach().clone()
    learner.apply()
    assert not torch.equal(head.weight, before)


@pytest.mark.parametrize("sharing", ["off", "packed", "depth_first"])
def test_values_without_logits_are_learned_as_with_them_and_read_as_they_were_learned(sharing: Sharing) -> None:
    samples = [replace(sample, returns=sample.advantages, old_logprobs=None) for sample in tree(7)]
    heads, losses = [], []
    for values_only in (False, True):
        torch.manual_seed(1)
        head = torch.nn.Linear(32, 1).double()
        model = exact(model_of("llama"))
        learner = Learner(
            model,
            value_head=_Flat(head),
            loss=LossSettings(value_weight=1.0),
            policy_loss=no_policy_losses,
            sharing=sharing,
            values_only=values_only,
        )
        losses.append(learner.update(samples, micro_batch_tokens=40).loss)
        heads.append((head.weight.detach().clone(), model.model.layers[0].mlp.up_proj.weight.detach().clone()))
    assert losses[0] == losses[1] > 0
    assert all(torch.equal(one, other) for one, other in zip(*heads, strict=True))
    plain = response_values(model, _Flat(head), samples, micro_batch_tokens=40, sharing="off")
    found = response_values(model, _Flat(head), samples, micro_batch_tokens=40, sharing=sharing)
    for one, other in zip(plain, found, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


class _Flat(torch.nn.Module):
    """A value head without bounds on its first values."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        values_T1: torch.Tensor = self.linear(hidden_TD)
        return values_T1[:, 0]


def test_on_policy_takes_ratios_as_1_in_the_loss_and_as_they_are_in_the_result() -> None:
    model, samples = exact(model_of("llama")), tree(8)
    without = gradients(model, [replace(sample, old_logprobs=None) for sample in samples], sharing="off")
    for sharing in ("off", "packed", "depth_first"):
        found = gradients(model, samples, sharing=sharing, on_policy=True)
        rows = gradients(model, samples, sharing="off")
        assert_same((found[0], found[1][:4], 0), (without[0], without[1][:4], 0), 1e-10)
        assert found[1][4:] == pytest.approx(rows[1][4:], rel=1e-9)  # Raw ratios, which the gradient did not use.
        assert found[1][2] == 0 < rows[1][2]  # Nothing is clipped at a ratio of 1.


def test_losses_are_multiplied_by_the_weight_of_their_sample() -> None:
    # Without old log-probabilities a token's loss is minus its advantage: (2 x (-1 - 3) + 0.5 x 4) / 3 = -2.
    model = exact(model_of("llama"))
    samples = [Sample((1, 3), (5, 9), (1.0, 3.0), weight=2.0), Sample((1, 3), (4,), (-4.0,), weight=0.5)]
    for sharing in ("off", "packed", "depth_first"):
        learner = Learner(model, sharing=sharing)
        sums, _ = learner.accumulate(samples, micro_batch_tokens=100)
        assert float(sums[0]) == pytest.approx(-2.0, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("bloom", {"n_head": 4, "n_layer": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0}, "a bloom on a trie"),
        ("falcon", {"attention_dropout": 0.0, "hidden_dropout": 0.0}, "a falcon on a trie"),
        (
            "recurrent_gemma",
            {"lru_width": 32, "attention_window_size": 8, "head_dim": 8},
            "a recurrent_gemma on a trie",
        ),
    ],
)
def test_a_model_that_cannot_share_learns_from_rows_and_says_so(kind: str, changes: dict[str, Any], why: str) -> None:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**TINY, "num_key_value_heads": 4, **changes})
    model = train_all(AutoModelForCausalLM.from_config(config)).double()
    samples = tree(9, count=4)
    learner = Learner(model, loss=LOSS, sharing="packed")
    assert why in learner.notes[0]
    told = learner.update(samples, micro_batch_tokens=10_000)
    assert told.response_tokens == sum(sample.counted_tokens for sample in samples)
    plain = response_logprobs(model, samples, micro_batch_tokens=10_000, sharing="off")
    assert response_logprobs(model, samples, micro_batch_tokens=10_000) == plain


def test_a_softcap_on_attention_is_applied_on_a_trie_as_eager_attention_does() -> None:
    torch.manual_seed(0)
    family, changes = KINDS["gemma2"]
    config = CONFIG_MAPPING[family](**{**TINY, **changes, "attn_logit_softcapping": 2.0})
    samples = tree(10)
    eager = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    capped = copy.deepcopy(eager)
    capped.config._attn_implementation = "sdpa"
    rows = gradients(train_all(eager), samples, sharing="off")
    assert_same(gradients(train_all(capped), samples, sharing="auto"), rows, 1e-4)
    assert "softcap on attention scores is ignored" in Learner(train_all(capped), sharing="off").notes[0]
    assert capped.config._attn_implementation == "sdpa"


def test_an_update_of_a_bfloat16_policy_is_that_of_the_rows_up_to_rounding() -> None:
    model, samples = model_of("llama").bfloat16(), tree(11)
    rows, found = (gradients(copy.deepcopy(model), samples, sharing=sharing)[0] for sharing in ("off", "packed"))
    apart = sum(float((found[name] - grad).double().square().sum()) for name, grad in rows.items())
    size = sum(float(grad.double().square().sum()) for grad in rows.values())
    assert apart < 0.03**2 * size


def test_statistics_of_an_update_are_those_of_the_rows() -> None:
    told = []
    for sharing in ("off", "packed", "depth_first"):
        model = exact(model_of("llama"))
        learner = Learner(model, loss=LOSS, adam=AdamSettings(learning_rate=1e-3), sharing=sharing)
        told.append(learner.update(tree(12), micro_batch_tokens=60))
    for other in told[1:]:
        for name in (
            "loss",
            "kl",
            "clipped_share",
            "entropy",
            "ratio_low",
            "ratio_mean",
            "ratio_high",
            "gradient_norm",
        ):
            assert getattr(other, name) == pytest.approx(getattr(told[0], name), rel=1e-9), name
        assert other.response_tokens == told[0].response_tokens
