"""An update on rows gives the same weights however it is cut, and those of a plain one written out."""

import copy
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaForCausalLM

from palmette.errors import BackendError, ConfigError, PalmetteError, RunError
from palmette.memory.guard import RunPieces
from palmette.train.model_parts import head_of, train_all, train_lora
from palmette.train.samples import Sample
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.loss import LossSettings
from palmette.train.update.optimizer import AdamSettings, AdamW
from palmette.train.update.reference import response_logprobs

LOSS = LossSettings(clip_low=0.1, clip_high=0.3, kl_weight=0.05, entropy_weight=0.02)
ADAM = AdamSettings(learning_rate=1e-3, weight_decay=0.1, max_norm=0.5)


def drawn(count: int, vocabulary: int, *, temperature: float = 0.9, masked: bool = False) -> list[Sample]:
    rng = random.Random(0)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(length))

    samples = []
    for place in range(count):
        length = rng.randint(1, 9)
        samples.append(
            Sample(
                prompt=tokens(rng.randint(1, 6)),
                response=tokens(length),
                advantages=tuple(rng.gauss(0, 1) for _ in range(length)),
                group=place // 4,
                old_logprobs=tuple(rng.gauss(-3, 0.5) for _ in range(length)),
                reference_logprobs=tuple(rng.gauss(-3, 0.5) for _ in range(length)),
                temperature=temperature,
            )
        )
    return [with_a_mask(sample, rng) for sample in samples] if masked else samples


def with_a_mask(sample: Sample, rng: random.Random) -> Sample:
    """Mask about half of the tokens, of one sample in four none."""
    if rng.random() < 0.25:
        return sample
    mask = [rng.random() < 0.5 for _ in sample.response]
    mask[rng.randrange(len(mask))] = True
    return dataclasses.replace(sample, mask=tuple(mask))


def updated(policy: Any, *, dtype: torch.dtype = torch.float64, tokens: int = 10_000, **options: Any) -> Any:
    model = train_all(copy.deepcopy(policy).to(dtype))
    run, masked = options.pop("run_pieces", None), options.pop("masked", False)
    # Adam's first step is g / (|g| + eps): with 1e-8, float32's rounding of a gradient near zero is a whole step.
    adam = ADAM if dtype == torch.float64 else dataclasses.replace(ADAM, eps=1e-4)
    learner = Learner(model, sharing="off", loss=LOSS, adam=adam, temperature=0.9, **options)
    result = learner.update(drawn(12, 21, masked=masked), micro_batch_tokens=tokens, run_pieces=run)
    return model, result


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module, atol: float) -> None:
    for (name, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=atol, msg=name)


def written_out(policy: LlamaForCausalLM, samples: Sequence[Sample]) -> tuple[LlamaForCausalLM, float]:
    """One update by full logits, one sample at a time, with torch's plain AdamW."""
    model = copy.deepcopy(policy).double().requires_grad_(True)
    marks = [torch.tensor(sample.mask or (True,) * len(sample.response), dtype=torch.float64) for sample in samples]
    total = float(torch.cat(marks).sum())
    value = 0.0
    for sample, mark in zip(samples, marks, strict=True):
        row = torch.tensor([[*sample.prompt, *sample.response]])
        logs = torch.log_softmax(model(row).logits[0] / 0.9, -1)[len(sample.prompt) - 1 : -1]
        chosen = logs[range(len(sample.response)), list(sample.response)]
        ratio = torch.exp(chosen - torch.tensor(sample.old_logprobs, dtype=torch.float64))
        advantages = torch.tensor(sample.advantages, dtype=torch.float64)
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.3) * advantages)
        apart = torch.tensor(sample.reference_logprobs, dtype=torch.float64) - chosen
        entropy = -(logs.exp() * logs).sum(-1)
        loss = (mark * (-gain + 0.05 * (apart.exp() - apart - 1) - 0.02 * entropy)).sum() / total
        loss.backward()
        value += loss.detach().item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1).step()
    return model, value


@pytest.mark.parametrize("masked", [False, True])
def test_an_update_is_the_plain_one_written_out(policy: LlamaForCausalLM, masked: bool) -> None:
    ours, result = updated(policy, masked=masked)
    samples = drawn(12, 21, masked=masked)
    plain, loss = written_out(policy, samples)
    assert_same(ours, plain, 1e-10)
    assert not ours.training  # As it was: the policy goes on to sample.
    assert abs(result.loss - loss) < 1e-12
    counted = sum(sum(sample.mask or (True,) * len(sample.response)) for sample in samples)
    assert result.response_tokens == counted
    assert (counted < sum(len(sample.response) for sample in samples)) == masked


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [14, 30, 64])
@pytest.mark.parametrize(("dtype", "atol", "rel"), [(torch.float64, 1e-10, 1e-12), (torch.float32, 1e-6, 1e-5)])
def test_micro_batches_change_no_weight(
    policy: LlamaForCausalLM, tokens: int, dtype: torch.dtype, atol: float, rel: float, masked: bool
) -> None:
    whole, one = updated(policy, dtype=dtype, masked=masked)
    cut, many = updated(policy, dtype=dtype, tokens=tokens, masked=masked)
    assert one.pieces == 1 < many.pieces
    assert_same(cut, whole, atol)
    for name in ("loss", "kl", "entropy", "ratio_low", "ratio_mean", "ratio_high"):
        assert getattr(one, name) == pytest.approx(getattr(many, name), rel=rel), name
    assert one.clipped_share == pytest.approx(many.clipped_share, abs=1e-6)


def gradients(policy: LlamaForCausalLM, samples: Sequence[Sample]) -> tuple[list[torch.Tensor], list[float]]:
    model = train_all(copy.deepcopy(policy).double())
    learner = Learner(model, sharing="off", loss=LOSS, temperature=0.9)
    sums, _ = learner.accumulate(samples, micro_batch_tokens=10_000)
    found = [weight.grad for weight in model.parameters()]
    return [gradient for gradient in found if gradient is not None], sums.tolist()


def test_a_masked_token_is_read_and_nothing_else(policy: LlamaForCausalLM) -> None:
    first, second, third = (5, 0.7, -2.0, -3.0), (9, -1.1, -1.5, -2.5), (2, 0.4, -2.2, -2.1)

    def sample(prompt: tuple[int, ...], *tokens: tuple[int, float, float, float], mask: Any = None) -> Sample:
        response, advantages, old, reference = zip(*tokens, strict=True)
        return Sample(prompt, response, advantages, None, old, reference, 0.9, mask)

    beside = sample((4, 4), first, third)
    apart = [
        # What comes after the last counted token changes nothing before it; what comes before the first is a prompt.
        (sample((1, 3), first, second, third, mask=(True, True, False)), sample((1, 3), first, second)),
        (sample((1, 3), first, second, third, mask=(False, True, True)), sample((1, 3, 5), second, third)),
        (
            sample((1, 3), first, second, third, mask=(True, False, True)),
            sample((1, 3), first, (9, 99.0, -9.0, -9.0), third, mask=(True, False, True)),
        ),
    ]
    for masked, plain in apart:
        ours, told = gradients(policy, [masked, beside])
        theirs, expected = gradients(policy, [plain, beside])
        assert told == pytest.approx(expected, abs=1e-12)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_advantages_weigh_their_own_token(policy: LlamaForCausalLM) -> None:
    # Without old log-probabilities a token's loss is minus its advantage: the mean of 1, -3 and 5 is 1.
    model = train_all(copy.deepcopy(policy).double())
    learner = Learner(model, sharing="off")
    told = learner.update([Sample((1, 3), (5, 9, 2), (1.0, -3.0, 5.0))], micro_batch_tokens=100)
    assert told.loss == pytest.approx(-1.0, abs=1e-12)
    masked = [Sample((1, 3), (5, 9, 2), (1.0, -3.0, 5.0), mask=(True, True, False)), Sample((1,), (4,), (0.0,))]
    told = learner.update(masked, micro_batch_tokens=4)
    # A zero counts: (1 - 3 + 0) / 3. A masked token does not.
    assert (told.response_tokens, told.pieces) == (3, 2) and told.loss == pytest.approx(2 / 3, abs=1e-12)
    assert (told.ratio_low, told.ratio_mean, told.ratio_high) == (1.0, 1.0, 1.0)


def test_checkpointing_runs_layers_again_and_changes_no_weight(policy: LlamaForCausalLM) -> None:
    model = train_all(copy.deepcopy(policy).double())
    passes: list[bool] = []
    learner = Learner(model, sharing="off", loss=LOSS, adam=ADAM, temperature=0.9, savings=Savings(checkpointing=True))
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: passes.append(True))
    result = learner.update(drawn(12, 21), micro_batch_tokens=40)
    assert len(passes) == 2 * result.pieces > 2
    assert_same(model, updated(policy)[0], 1e-10)


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


@pytest.mark.parametrize("fatal", [{1}, {2}, {2, 3}, {3, 6}])
def test_a_backward_pass_that_dies_half_way_counts_nothing_twice(policy: LlamaForCausalLM, fatal: set[int]) -> None:
    model = train_all(copy.deepcopy(policy).double())
    calls, half_added, failed = [0], [], list[int]()

    def die(gradient: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] in fatal:
            half_added.append(model.model.layers[1].mlp.down_proj.weight.grad is not None)
            raise MemoryError
        return gradient

    model.model.layers[0].mlp.up_proj.weight.register_hook(die)
    learner = Learner(model, sharing="off", loss=LOSS, adam=ADAM, temperature=0.9)
    result = learner.update(drawn(12, 21), micro_batch_tokens=60, run_pieces=halving(failed))
    assert half_added == [True] * len(fatal)  # The layer above had its gradient already.
    assert len(failed) == len(fatal) and result.pieces > 3
    assert_same(model, updated(policy)[0], 1e-10)


def test_an_update_that_fails_changes_nothing_and_the_next_one_is_whole(policy: LlamaForCausalLM) -> None:
    model = train_all(copy.deepcopy(policy).double())
    hook = model.model.layers[0].mlp.up_proj.weight.register_hook(lambda gradient: gradient * float("nan"))
    learner = Learner(model, sharing="off", loss=LOSS, adam=ADAM, temperature=0.9)
    with pytest.raises(RunError, match="not finite, so no weight was changed"):
        learner.update(drawn(12, 21), micro_batch_tokens=60)
    assert_same(model, copy.deepcopy(policy).double(), 0)
    hook.remove()
    learner.update(drawn(12, 21), micro_batch_tokens=60)
    assert_same(model, updated(policy)[0], 1e-10)


def test_lora_trains_adapters_only_and_equals_itself_however_it_is_cut(policy: LlamaForCausalLM) -> None:
    pytest.importorskip("peft")
    made = []
    for tokens, savings in ((10_000, Savings()), (30, Savings(checkpointing=True))):
        torch.manual_seed(0)
        model = train_lora(copy.deepcopy(policy).double(), rank=4)
        before = copy.deepcopy(model.state_dict())
        learner = Learner(model, sharing="off", loss=LOSS, adam=ADAM, savings=savings)
        learner.update(drawn(12, 21, temperature=1.0), micro_batch_tokens=tokens)
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        assert changed and all("lora_" in name for name in changed)
        made.append(model)
    assert_same(made[0], made[1], 1e-6)


def test_a_step_is_that_of_torch_s_adamw_on_float32_masters(policy: LlamaForCausalLM) -> None:
    narrow, masters = copy.deepcopy(policy).bfloat16(), copy.deepcopy(policy).bfloat16().float()
    on_host = copy.deepcopy(narrow)
    mine = AdamW(list(narrow.parameters()), ADAM)
    hosts = AdamW(list(on_host.parameters()), ADAM, device=torch.device("cpu"))
    plain = torch.optim.AdamW(masters.parameters(), lr=1e-3, weight_decay=0.1)
    for turn in range(3):
        for theirs, *ours in zip(masters.parameters(), narrow.parameters(), on_host.parameters(), strict=True):
            gradient = torch.cos(torch.arange(theirs.numel()) + turn).view_as(theirs).bfloat16()
            theirs.grad = gradient.float()
            for weight in ours:
                weight.grad = gradient.clone()
        for optimizer in (mine, hosts, plain):
            optimizer.step()
    assert_same(narrow, masters.bfloat16(), 0)
    assert_same(on_host, narrow, 0)


def test_steps_smaller_than_bfloat16_can_tell_add_up() -> None:
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = AdamW([weight], AdamSettings(learning_rate=1e-3))
    for _ in range(8):  # Each step of 0.001 alone would be rounded away: bfloat16 steps by 0.004 below 1.
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert float(weight.detach()) == pytest.approx(0.992, abs=0.002)


def test_weights_that_are_loaded_between_updates_are_what_goes_on() -> None:
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = AdamW([weight], AdamSettings(learning_rate=1e-3))
    for value in (1.0, 0.25):
        with torch.no_grad():
            weight.copy_(torch.full_like(weight, value))
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert weight.detach().float().tolist() == pytest.approx([value - 0.001] * 4, abs=0.004)


@pytest.mark.parametrize(
    "wrong", [{"max_norm": -1.0}, {"max_norm": 0.0}, {"betas": (2.0, 2.0)}, {"weight_decay": -1.0}, {"eps": 0.0}]
)
def test_settings_of_adamw_that_turn_or_break_a_step_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AdamSettings(**wrong)


def test_a_layer_of_dropout_is_refused_by_its_name() -> None:
    with pytest.raises(BackendError, match="cannot train a gpt2: transformer.h.0.* has a dropout of 0.1"):
        Learner(tiny("gpt2", n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.1, attn_pdrop=0.0, embd_pdrop=0.0))


def test_dropout_of_an_untrained_adapter_is_refused(policy: LlamaForCausalLM) -> None:
    peft = pytest.importorskip("peft")
    own = peft.LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"])
    with pytest.raises(BackendError, match=r"q_proj.*has a dropout of 0.5"):
        Learner(peft.get_peft_model(copy.deepcopy(policy), own))


def test_log_probabilities_of_a_model_in_train_mode_are_those_in_eval_mode() -> None:
    model = tiny("llama", attention_dropout=0.5).train()
    samples = drawn(4, 40, temperature=1.0)
    first = response_logprobs(model, samples, micro_batch_tokens=100)
    assert first == response_logprobs(model, samples, micro_batch_tokens=100)
    assert model.training
    assert response_logprobs(model, [], micro_batch_tokens=100) == []
    with pytest.raises(PalmetteError, match="token 99, the model has 0 to 39"):
        response_logprobs(model, [Sample((1,), (99,), (1.0,))], micro_batch_tokens=100)
    with pytest.raises(PalmetteError, match="at temperature 0"):
        response_logprobs(model, samples, micro_batch_tokens=100, temperature=0)


def test_a_bfloat16_policy_learns_as_the_same_one_in_float32(policy: LlamaForCausalLM) -> None:
    """The loss of forty small updates falls in bfloat16 as in float32, up to the rounding of its outputs."""
    samples = [dataclasses.replace(each, old_logprobs=None, reference_logprobs=None) for each in drawn(8, 21)]
    positive = [dataclasses.replace(each, advantages=(1.0,) * len(each.response)) for each in samples]

    def likelihoods(dtype: torch.dtype) -> tuple[float, float]:
        model: Any = copy.deepcopy(policy)
        model = train_all(model.to(dtype))
        learner = Learner(model, adam=AdamSettings(learning_rate=1e-4, max_norm=None), temperature=0.9)

        def likelihood() -> float:
            values = response_logprobs(model, positive, micro_batch_tokens=1000)
            return sum(sum(each) / len(each) for each in values) / len(values)

        before = likelihood()
        for _ in range(40):
            learner.update(positive, micro_batch_tokens=1000)
        return before, likelihood()

    (before, wide), (_, narrow) = likelihoods(torch.float32), likelihoods(torch.bfloat16)
    assert wide > before + 0.1
    assert narrow - before == pytest.approx(wide - before, rel=0.25)


def test_a_model_without_weights_to_train_is_refused(policy: LlamaForCausalLM) -> None:
    with pytest.raises(BackendError, match="call train_all or train_lora first"):
        Learner(copy.deepcopy(policy).requires_grad_(False))


TINY: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def tiny(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return train_all(AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{**TINY, **changes})))


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("llama", {"attention_dropout": 0.1}, "attention_dropout 0.1"),
        ("opt", {"dropout": 0.1, "ffn_dim": 48, "word_embed_proj_dim": 32}, "dropout 0.1"),
        ("starcoder2", {"residual_dropout": 0.1}, "residual_dropout 0.1"),
        ("mixtral", {"num_local_experts": 4, "router_jitter_noise": 0.1}, "router_jitter_noise 0.1"),
        ("phimoe", {"num_local_experts": 4, "input_jitter_noise": 0.1}, "input_jitter_noise 0.1"),
    ],
)
def test_a_model_that_is_random_in_train_mode_is_refused_with_the_setting(
    kind: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(BackendError, match=f"cannot train a {kind}: .* random.*{named}"):
        Learner(tiny(kind, **changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("opt", {"dropout": 0.0, "ffn_dim": 48, "word_embed_proj_dim": 32}),  # Draws a number per layer all the same.
        ("falcon", {"attention_dropout": 0.0, "hidden_dropout": 0.0}),
        ("bloom", {"n_head": 4, "n_layer": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0}),
        ("mixtral", {"num_local_experts": 4}),
        ("gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8}),
    ],
)
def test_a_model_without_noise_is_taken(kind: str, changes: dict[str, Any]) -> None:
    model = tiny(kind, **changes).eval()
    state = torch.get_rng_state()
    assert not Learner(model).model.training
    assert torch.equal(torch.get_rng_state(), state)  # The check leaves mode and generator as they were.


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 4.0}),
    ],
)
def test_a_model_that_scales_its_logits_is_refused(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BackendError, match=f"cannot train a {kind}: its logits are not those of its head alone"):
        Learner(tiny(kind, **changes))


def test_every_name_of_a_softcap_is_known() -> None:
    for kind, changes in [
        ("recurrent_gemma", {"logits_soft_cap": 2.0, "lru_width": 32, "attention_window_size": 8, "head_dim": 8}),
        ("xlstm", {"output_logit_soft_cap": 2.0, "num_heads": 4}),
        ("gemma2", {"final_logit_softcapping": 2.0, "head_dim": 8, "query_pre_attn_scalar": 8}),
    ]:
        assert head_of(tiny(kind, **changes)).softcap == 2.0


def test_lora_on_all_layers_adapts_fused_ones_too() -> None:
    pytest.importorskip("peft")
    model = train_lora(tiny("phi3"), rank=4)
    adapted = {name.split(".")[-4] for name, weight in model.named_parameters() if "lora_A" in name}
    assert adapted == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}


def test_savings_that_do_nothing_here_are_told(policy: LlamaForCausalLM) -> None:
    learner = Learner(train_all(copy.deepcopy(policy)), savings=Savings(host_optimizer=True, host_activations=True))
    assert [note.split()[0] for note in learner.notes] == ["host_optimizer", "host_activations"]


def test_samples_at_another_temperature_are_refused_and_nothing_is_changed(policy: LlamaForCausalLM) -> None:
    model = train_all(copy.deepcopy(policy))
    learner = Learner(model, temperature=0.7)
    with pytest.raises(PalmetteError, match=r"sample 0 is at temperature 0.9, the learner at 0.7: give Learner temp"):
        learner.update(drawn(12, 21), micro_batch_tokens=100)
    assert_same(model, policy, 0)


@pytest.mark.parametrize("rate", [1e38, 1.5, 0.0, -1e-3, float("inf"), float("nan")])
def test_a_learning_rate_that_only_destroys_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"learning_rate is .* give a number above 0 and up to 1, 1e-6 say"):
        AdamSettings(learning_rate=rate)
    with pytest.raises(ConfigError, match="eps is 0: give a number above 0, 1e-8 say"):
        AdamSettings(eps=0)


def test_the_largest_learning_rate_leaves_weights_finite(policy: LlamaForCausalLM) -> None:
    model = train_all(copy.deepcopy(policy))
    learner = Learner(model, adam=AdamSettings(learning_rate=1.0), temperature=0.9)
    for _ in range(3):
        learner.update(drawn(12, 21), micro_batch_tokens=100)
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_a_step_made_not_finite_are_told_as_lost(policy: LlamaForCausalLM, dtype: torch.dtype) -> None:
    # No number of these is refused alone; 1 - learning_rate x weight_decay is more than float32 holds.
    model = copy.deepcopy(policy)
    model.to(dtype)  # type: ignore[arg-type]
    learner = Learner(train_all(model), adam=AdamSettings(learning_rate=0.5, weight_decay=1e39), temperature=0.9)
    with pytest.raises(RunError, match=r"not finite, at a learning rate of 0.5. They are lost: load the last check"):
        learner.update(drawn(12, 21), micro_batch_tokens=100)
    assert all(weight.grad is None for weight in model.parameters())
    model.load_state_dict(policy.state_dict())
    with pytest.raises(RunError, match="They are lost"):  # The model is whole again, the learner does the same.
        learner.update(drawn(12, 21), micro_batch_tokens=100)


def test_one_weight_that_is_not_finite_is_seen_wherever_it_stands(policy: LlamaForCausalLM) -> None:
    config = copy.deepcopy(policy.config)
    config.tie_word_embeddings = False
    for bad in (float("nan"), float("inf"), -float("inf")):
        model = train_all(LlamaForCausalLM(config).eval())
        learner = Learner(model, temperature=0.9)
        with torch.no_grad():  # The embedding of a token that no sample holds: no gradient tells of it.
            model.model.embed_tokens.weight[20, 7] = bad
        with pytest.raises(RunError, match="They are lost"):
            learner.update(drawn(12, 20), micro_batch_tokens=100)
