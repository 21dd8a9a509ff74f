"""AdamW with its state in bfloat16, at a learning rate of each step, and from a checkpoint; Muon for matrices."""

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from palmette.errors import ConfigError, RunError
from palmette.train.model_parts import train_all
from palmette.train.samples import Sample
from palmette.train.update.bfloat16_adam import mixed_seed, round_at_random
from palmette.train.update.learner import Learner
from palmette.train.update.optimizer import AdamSettings, AdamW

SAMPLES = [Sample((1, 3), (5, 9, 2), (1.0, -3.0, 0.5)), Sample((1, 3), (5, 4), (-1.0, 0.7))]


def test_numbers_are_rounded_to_a_neighbor_and_right_on_average() -> None:
    # Between 1 and its next bfloat16 number, 1.0078125, a quarter of the way: up for a quarter of all noise.
    value = 1 + 0.25 * 2**-7
    numbers = torch.full((2**16,), value)
    round_at_random(numbers, torch.arange(2**16, dtype=torch.int32))
    assert sorted(set(numbers.tolist())) == [1.0, 1.0078125]
    assert float((numbers > 1).double().mean()) == 0.25
    below = -torch.full((2**16,), value)
    round_at_random(below, torch.arange(2**16, dtype=torch.int32))
    assert float(below.double().mean()) == pytest.approx(-value, abs=1e-12)
    whole = torch.tensor([0.0, -0.0, 1.5, -3.25e38, 1e-40])
    kept = whole.bfloat16().float()
    round_at_random(kept, torch.full((5,), 2**16 - 1, dtype=torch.int32))
    assert torch.equal(kept, whole.bfloat16().float())  # What bfloat16 can tell stays as it is.


def test_a_state_in_bfloat16_follows_one_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(200, 300, generator=generator)
    wide, half_state = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    narrow = torch.nn.Parameter(start.bfloat16())
    settings = AdamSettings(learning_rate=1e-3, weight_decay=0.1)
    rounded = AdamSettings(learning_rate=1e-3, weight_decay=0.1, state_dtype="bfloat16")
    optimizers = AdamW([wide], settings), AdamW([half_state], rounded), AdamW([narrow], rounded)
    for _ in range(100):
        gradient = torch.randn(start.shape, generator=generator) + 0.5
        for weight, optimizer in zip((wide, half_state, narrow), optimizers, strict=True):
            weight.grad = gradient.to(weight.dtype)
            optimizer.step()
    moved = (wide - start).detach()
    assert float(moved.mean()) < -0.03
    for weight, state_only in ((half_state, True), (narrow, False)):
        apart = (weight.detach().float() - wide.detach()).mean() / moved.mean()
        assert abs(float(apart)) < 0.02, state_only  # Rounded to the nearest, steps of 0.001 would be lost.
    squares = (
        optimizers[1].state_dict()["0.exp_avg_sq"].float().mean() / optimizers[0].state_dict()["0.exp_avg_sq"].mean()
    )
    assert float(squares) == pytest.approx(1, abs=0.01)
    assert optimizers[2].state_dict().keys() == {"0.step", "0.exp_avg", "0.exp_avg_sq"}  # No master.


def test_random_rounding_depends_on_seed_step_and_weight_alone() -> None:
    def made(seed: int, noise: bool) -> list[torch.Tensor]:
        weights = [torch.nn.Parameter(torch.ones(50, dtype=torch.bfloat16)) for _ in range(2)]
        optimizer = AdamW(weights, AdamSettings(learning_rate=1e-3, state_dtype="bfloat16", seed=seed))
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            if noise:
                torch.rand(7)
        return [weight.detach() for weight in weights]

    state = torch.get_rng_state()
    first = made(0, noise=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, other) for one, other in zip(first, made(0, noise=True), strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], made(1, noise=False)[0])
    assert mixed_seed(1, 12) != mixed_seed(11, 2)


def test_a_block_of_a_weight_is_rounded_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(weight: torch.nn.Parameter) -> torch.Tensor:
        optimizer = AdamW([weight], AdamSettings(learning_rate=1e-2, state_dtype="bfloat16"))
        for _ in range(3):
            weight.grad = torch.linspace(-1, 1, weight.numel()).view_as(weight)
            optimizer.step()
        return weight.detach()

    start = torch.linspace(0, 1, 60).view(6, 10)
    whole = made(torch.nn.Parameter(start.clone()))
    monkeypatch.setattr("palmette.train.update.bfloat16_adam.BLOCK_NUMBERS", 7)
    torch.testing.assert_close(made(torch.nn.Parameter(start.clone())), whole, rtol=0, atol=3e-4)
    # Not contiguous, as a transposed view is.
    turned = made(torch.nn.Parameter(start.t().clone().t()))
    torch.testing.assert_close(turned, whole, rtol=0, atol=3e-4)


def test_a_step_is_made_at_its_own_learning_rate() -> None:
    for dtype, state_dtype in ((torch.float32, "float32"), (torch.bfloat16, "float32"), (torch.float32, "bfloat16")):
        weight = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
        optimizer = AdamW([weight], AdamSettings(learning_rate=0.5, state_dtype=state_dtype))  # type: ignore[arg-type]
        for rate, expected in ((0.25, -0.25), (0.125, -0.375), (0.0, -0.375), (None, -0.875)):
            weight.grad = torch.ones_like(weight)
            optimizer.step(rate)  # Each step of Adam is the learning rate, as the gradient stays the same.
            assert weight.detach().float().tolist() == pytest.approx([expected] * 4, abs=2e-3)


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "matrices"),
    [
        (torch.float32, "float32", "adamw"),
        (torch.bfloat16, "float32", "adamw"),
        (torch.float32, "bfloat16", "adamw"),
        (torch.bfloat16, "bfloat16", "adamw"),
        (torch.float32, "float32", "muon"),
    ],
)
def test_a_learner_that_goes_on_from_its_state_is_the_one_that_never_stopped(
    policy: LlamaForCausalLM, dtype: torch.dtype, state_dtype: Any, matrices: Any, tmp_path: Any
) -> None:
    from safetensors.torch import load_file, save_file

    adam = AdamSettings(learning_rate=1e-2, state_dtype=state_dtype, seed=3, matrices=matrices)

    def updated(learner: Learner, turns: int) -> None:
        for turn in range(turns):
            learner.update(SAMPLES, micro_batch_tokens=100, learning_rate=1e-2 / (1 + turn))

    whole: Any = copy.deepcopy(policy)
    whole = train_all(whole.to(dtype))
    begun = copy.deepcopy(whole)
    learner = Learner(whole, adam=adam)
    updated(learner, 2)
    updated(learner, 2)
    first = Learner(begun, adam=adam)
    updated(first, 2)
    save_file(first.optimizer.state_dict(), tmp_path / "optimizer.safetensors")
    again = copy.deepcopy(begun)
    second = Learner(again, adam=adam)
    second.optimizer.load_state_dict(load_file(tmp_path / "optimizer.safetensors"))
    updated(second, 2)
    for (name, mine), other in zip(again.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_the_state_of_another_model_is_refused_and_changes_nothing() -> None:
    weights = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(2, 3))]
    optimizer = AdamW(weights, AdamSettings(), names=["norm", "proj"])
    weights[0].grad = torch.ones(4)
    optimizer.step()
    state = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    assert state.keys() == {f"{one}.{key}" for one in ("norm", "proj") for key in ("step", "exp_avg", "exp_avg_sq")}
    wrong = {**state, "proj.exp_avg": torch.ones(3, 3)}
    less = {name: tensor for name, tensor in state.items() if name != "proj.step"}
    for given, said in (
        (less, "another model: proj.step is missing"),
        ({**state, "gate.step": torch.ones(())}, "gate.step is not known here"),
        (wrong, r"proj.exp_avg is \[3, 3\] in torch.float32, not \[2, 3\] in torch.float32"),
    ):
        with pytest.raises(RunError, match=said):
            optimizer.load_state_dict({name: tensor * 2 for name, tensor in given.items()})
    assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.state_dict().items())
    with pytest.raises(ConfigError, match="state_dtype is 'int8': give float32 or bfloat16"):
        AdamSettings(state_dtype="int8")  # type: ignore[arg-type]


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return the nearest matrix with orthonormal rows or columns, by its singular value decomposition."""
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left @ right


def test_muon_moves_a_matrix_by_the_orthogonal_one_next_to_its_gradients_as_far_as_adamw_would() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(24, 48, generator=generator)
    weight = torch.nn.Parameter(start.clone())
    settings = AdamSettings(learning_rate=0.01, weight_decay=0.1, matrices="muon")
    optimizer = AdamW([weight], settings, matrices=[weight])
    gradients = [torch.randn(start.shape, generator=generator) for _ in range(2)]
    momentum, expected = torch.zeros_like(start), start.double()
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        direction = orthogonal(0.95 * momentum + 0.05 * gradient)
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * 0.2 * 48**0.5 * direction
    moved, wanted = weight.detach().double() - start, expected - start
    # Five steps of Newton and Schulz bring singular values near to 1, not to 1.
    assert float(torch.cosine_similarity(moved.flatten(), wanted.flatten(), dim=0)) > 0.98
    assert float(moved.norm() / wanted.norm()) == pytest.approx(1, abs=0.2)
    assert optimizer.state_dict().keys() == {"0.momentum_buffer"}


def test_with_muon_a_learner_changes_matrices_of_layers_by_it_and_all_else_by_adamw(policy: LlamaForCausalLM) -> None:
    def after(matrices: Any) -> tuple[dict[str, torch.Tensor], set[str]]:
        model = train_all(copy.deepcopy(policy).float())
        learner = Learner(model, adam=AdamSettings(learning_rate=1e-3, matrices=matrices))
        learner.update(SAMPLES, micro_batch_tokens=64)
        return dict(model.named_parameters()), set(learner.optimizer.state_dict())

    (plain, _), (ours, state) = after("adamw"), after("muon")
    by_muon = {name.removesuffix(".momentum_buffer") for name in state if name.endswith(".momentum_buffer")}
    layers = {name for name, weight in ours.items() if ".layers." in name and weight.dim() == 2}
    assert by_muon == layers and layers
    for name, weight in ours.items():
        assert torch.equal(weight, plain[name]) != (name in layers), name


def test_muon_refuses_weights_whose_state_is_narrow_or_elsewhere() -> None:
    for weight, given in (
        (torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16)), {}),
        (torch.nn.Parameter(torch.ones(4, 4)), {"state_dtype": "bfloat16"}),
    ):
        with pytest.raises(ConfigError, match="Muon needs float32 weights"):
            AdamW([weight], AdamSettings(matrices="muon", **given), matrices=[weight])  # type: ignore[arg-type]
