"""Steps and scores do not depend on how many threads a tick has; what has to repeat exactly has as many as ever."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.engine import threads, tree_model
from palmette.engine.cuts import Sampling
from palmette.engine.threads import ThreadChoice, as_many_as_ever, as_many_as_free, pinned_threads


class Fixed(ThreadChoice):
    """Chooses in turn what it is given."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self._counts = counts
        self.chosen = 0

    def count(self, most: int) -> int:
        self.chosen += 1
        return min(most, self._counts[self.chosen % len(self._counts)])


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with three cores whose user has chosen no number."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_is_count_chosen", False)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_tick_uses_what_is_chosen_and_everything_else_as_many_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_choice", Fixed(1))
    with as_many_as_free():
        assert torch.get_num_threads() == 1
        with as_many_as_ever():
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
        with as_many_as_free():
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), as_many_as_free():
        raise KeyError
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_pinned_threads_stay_whatever_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_choice", Fixed(1))
    with pinned_threads(2):
        with as_many_as_free():
            assert torch.get_num_threads() == 2
        with pinned_threads(), as_many_as_free():
            assert torch.get_num_threads() == 2
    with as_many_as_free():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_kernel_that_reports_nothing_leaves_all_threads() -> None:
    assert ThreadChoice(lambda: None).count(3) == 3


def steps_of(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: tuple[int, ...]
) -> list[tuple[int, ...]]:
    backend = LocalBackend(policy, tokenizer, sampling=Sampling(), batch_rows=32)
    steps = backend.expand([Expansion("q", 0, prompt, seed, 40, seed) for seed in range(1, 33)])
    return [step.tokens for step in steps]


@pytest.mark.usefixtures("three_threads")
def test_steps_are_the_same_on_any_number_of_threads(
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompt: Callable[[str], tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree_model, "SMALL_HIDDEN_SIZE", 0)
    asked = prompt("12*12-(7-3)")
    with pinned_threads():
        expected = steps_of(policy, tokenizer, asked)
    for choice in (Fixed(1), Fixed(2), Fixed(3, 1, 2)):
        monkeypatch.setattr(threads, "_choice", choice)
        assert steps_of(policy, tokenizer, asked) == expected
        assert choice.chosen > 20
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_small_model_runs_on_one_thread_pinned_or_not(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for small in (policy.config.hidden_size, policy.config.hidden_size - 1):
        monkeypatch.setattr(tree_model, "SMALL_HIDDEN_SIZE", small)
        model = LocalBackend(policy, tokenizer, sampling=Sampling(), batch_rows=32).tree
        with pinned_threads():
            with model.threads():
                seen.append(torch.get_num_threads())
            with model.threads(), as_many_as_ever():
                seen.append(torch.get_num_threads())
    assert seen == [1, 3, 3, 3]


def test_rounded_weights_keep_their_threads(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = Fixed(1)
    monkeypatch.setattr(threads, "_choice", choice)
    monkeypatch.setattr(threads, "_is_count_chosen", False)
    rounded: Any = LlamaForCausalLM(policy.config)
    rounded = rounded.to(torch.bfloat16).eval()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        backend = LocalBackend(rounded, tokenizer, sampling=Sampling(), batch_rows=4)
        backend.expand([Expansion("q", 0, (1, 2, 3), 5, 4, 1)])
    finally:
        torch.set_num_threads(before)
    assert choice.chosen == 0


def test_threads_that_wait_soon_sleep_where_torch_is_loaded_by_palmette() -> None:
    """OpenMP itself tells what it was loaded with."""
    code = "import palmette.quiet_torch, torch"
    environment = {"OMP_DISPLAY_ENV": "VERBOSE", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr
