"""A backend and a scorer whose model runs out of memory at any of its calls, against the same ones left alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion
from palmette.backends.blocking import expand_all
from palmette.backends.guarded import GuardedBackend
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.engine.kv_pool import BLOCK_TOKENS, KvPool, KvShape, PoolFullError
from palmette.errors import BudgetError
from palmette.events import Event, MemoryTimeline, OomRetry
from palmette.memory.device import read_device
from palmette.memory.guard import Guard
from palmette.memory.meter import Meter
from palmette.run.watch import Watch
from palmette.score.guarded import GuardedScorer
from palmette.score.scorer import Candidate
from palmette.score.scorers.likelihood import LikelihoodScorer
from palmette.settings import MemorySettings

Prompt = Callable[[str], tuple[int, ...]]
NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"


def guard(retries: list[OomRetry], free_caches: Callable[[], bool] = lambda: False) -> Guard:
    return Guard(
        "wave", unit="node", reclaim=lambda: 0, observe=read_device, record=retries.append, free_caches=free_caches
    )


@contextmanager
def failing(model: LlamaForCausalLM, fails: Callable[[int, int], bool]) -> Iterator[None]:
    """Let the model's last layer run out of memory, by the number of the call and the tokens in it."""
    calls = 0

    def hook(module: Any, inputs: Any) -> None:
        nonlocal calls
        calls += 1
        if fails(calls, inputs[0].shape[1]):
            raise RuntimeError(NO_MEMORY)

    handle = model.model.layers[-1].register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def backend(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> LocalBackend:
    return LocalBackend(policy, tokenizer, sampling=Sampling(), batch_rows=64)


def wave(prompt: Prompt, parents: int = 3, children: int = 4) -> list[Expansion]:
    return [
        Expansion(f"q{number}", 0, prompt(f"{number}+2*{number}"), 10 * number + child, 12, 1 + child)
        for number in range(parents)
        for child in range(children)
    ]


def second(first: list[Expansion], tokens: list[tuple[int, ...]]) -> list[Expansion]:
    return [
        Expansion(one.question, one.node or 0, (*one.prefix, *grown), one.seed + 1000, 12, (one.node or 0) + 100)
        for one, grown in zip(first, tokens, strict=True)
    ]


@pytest.mark.parametrize("failed", [1, 2, 5, 9])
def test_a_wave_that_fails_at_any_call_grows_the_same_steps_and_leaves_a_whole_cache(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, failed: int
) -> None:
    asked = wave(prompt)
    free = backend(policy, tokenizer)
    expected = free.expand(asked)
    after = free.expand(second(asked, [step.tokens for step in expected]))
    local, retries = backend(policy, tokenizer), list[OomRetry]()
    guarded = GuardedBackend(local, guard(retries).run, nullcontext)
    with failing(policy, lambda call, tokens: call == failed):
        steps = expand_all(guarded, asked)
    running = sum(len(step.tokens) >= failed for step in expected)  # A call samples one token of each running row.
    assert [(retry.tried, retry.limit) for retry in retries] == [(running, running // 2)]
    assert [(step.tokens, step.text) for step in steps] == [(step.tokens, step.text) for step in expected]
    local.tree.cache.check_integrity()
    again = expand_all(guarded, second(asked, [step.tokens for step in steps]))
    assert [step.tokens for step in again] == [step.tokens for step in after]
    for expansion in asked:
        local.release(expansion.question, [0, expansion.node or 0, (expansion.node or 0) + 100])
    local.tree.cache.check_integrity()
    assert local.tree.cache.pool.taken_bytes == 0


def test_a_model_that_only_fits_few_rows_grows_the_same_steps(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    asked = wave(prompt)
    expected = backend(policy, tokenizer).expand(asked)
    most = max(len(one.prefix) for one in asked) + 1
    local, retries = backend(policy, tokenizer), list[OomRetry]()
    with failing(policy, lambda call, tokens: tokens > most):
        steps = expand_all(GuardedBackend(local, guard(retries).run, nullcontext), asked)
    assert [step.tokens for step in steps] == [step.tokens for step in expected]
    assert [retry.tried for retry in retries][:1] == [12]
    assert all(retry.limit is not None and retry.limit < retry.tried for retry in retries)


def test_caches_are_given_up_before_the_search_is(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    asked = wave(prompt, parents=1)
    expected = backend(policy, tokenizer).expand(asked)
    local, retries = backend(policy, tokenizer), list[OomRetry]()
    guarded = GuardedBackend(local, guard(retries, local.give_up_cache).run, nullcontext)
    before = local.tree.cache.pool.blocks
    with failing(policy, lambda call, tokens: local.tree.cache.pool.blocks == before):
        steps = expand_all(guarded, asked)
    assert [step.tokens for step in steps] == [step.tokens for step in expected]
    assert [(retry.tried, retry.limit, retry.spared) for retry in retries] == [
        (4, 2, False),
        (2, 1, False),
        (1, None, True),
    ]
    assert local.tree.cache.pool.limit_tokens == before // 2 * BLOCK_TOKENS
    local.tree.cache.check_integrity()


def test_a_model_that_never_fits_is_a_budget_error(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    local, retries = backend(policy, tokenizer), list[OomRetry]()
    guarded = GuardedBackend(local, guard(retries, local.give_up_cache).run, nullcontext)
    with (
        failing(policy, lambda call, tokens: True),
        pytest.raises(BudgetError, match=r"smallest wave \(1 node, tried 2, 1\)"),
    ):
        expand_all(guarded, wave(prompt, parents=1, children=2))
    assert retries[-1].limit is None and not retries[-1].spared
    local.tree.cache.check_integrity()


@pytest.mark.parametrize("failed", [1, 2, 3])
def test_scores_are_the_same_whichever_call_fails(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, failed: int
) -> None:
    steps = ("1+2=3\n", "3*4=12\n", "9-5=4\n", "7+7=14\n", "2*3=6\n", "8-1=7\n")
    first = [Candidate(({"role": "user", "content": "1+2*3"},), (step,), False) for step in steps]
    then = [Candidate(one.messages, (*one.steps, "5+5=10\n"), False) for one in first]
    free = LikelihoodScorer(policy, tokenizer, batch_rows=2)
    expected = free.score(first), free.score(then)
    scorer, retries = LikelihoodScorer(policy, tokenizer, batch_rows=2), list[OomRetry]()
    guarded = GuardedScorer(scorer, guard(retries).run, nullcontext)
    with failing(policy, lambda call, tokens: call == failed):
        found = guarded.score(first)
    with failing(policy, lambda call, tokens: call == failed):
        assert (found, guarded.score(then)) == expected
    assert retries[0].tried == 6
    assert min(expected[0]) < 0.99  # a step whose outputs were lost would score 1
    scorer.tree.cache.check_integrity()


class Cramped(KvPool):
    """A pool on a machine that holds so many blocks of it."""

    most = 10**9

    def _grow(self, count: int) -> None:
        if self.blocks + count > self.most:
            # As an allocator does it: after a part of the layers.
            self.keys[0] = torch.cat([self.keys[0], torch.zeros_like(self.keys[0])], dim=1)
            raise RuntimeError(NO_MEMORY)
        super()._grow(count)


def test_a_pool_that_cannot_double_grows_by_less_then_stops_at_its_size() -> None:
    pool = Cramped(KvShape(2, 1, 4, torch.float32, torch.device("cpu")))
    first = pool.blocks
    taken = pool.take(first)
    pool.values[1][0, taken[3]] = 7.0
    pool.most = first + first // 3
    more = pool.take(5)
    assert first + 5 <= pool.blocks <= pool.most  # a doubling, a half of it and a quarter: the quarter fits
    assert not pool.is_frozen
    assert float(pool.values[1][0, taken[3], 0]) == 7.0
    assert {tensor.shape[1] for tensor in (*pool.keys, *pool.values)} == {pool.blocks * BLOCK_TOKENS}
    rest = pool.take(pool.free_blocks)
    pool.most = pool.blocks
    with pytest.raises(PoolFullError):
        pool.take(1)
    assert pool.limit_tokens == pool.blocks * BLOCK_TOKENS
    assert pool.cache_full is not None and "allocate" in pool.cache_full.reason
    assert (pool.cache_full.wanted_tokens, pool.cache_full.limit_tokens) == (pool.limit_tokens + 1, pool.limit_tokens)
    pool.check_integrity([*taken, *more, *rest])
    assert {tensor.shape[1] for tensor in (*pool.keys, *pool.values)} == {pool.blocks * BLOCK_TOKENS}


def test_a_cache_that_cannot_grow_is_told_once_and_grows_the_same_steps(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(count: int) -> None:
        raise RuntimeError(NO_MEMORY)

    expected = backend(policy, tokenizer).expand(wave(prompt))
    local, heard = backend(policy, tokenizer), list[Event]()
    pool = local.tree.cache.pool
    pool.take(pool.free_blocks - 60)  # As if other branches held them.
    monkeypatch.setattr(pool, "_grow", full)
    with Meter() as meter, meter.recording(heard.append):
        watch = Watch(meter, MemorySettings(), local, None)
        for _ in range(2):
            steps = expand_all(watch.backend, wave(prompt))
            assert [step.tokens for step in steps] == [step.tokens for step in expected]
    (retry,) = [event for event in heard if isinstance(event, OomRetry)]
    assert (retry.guard, retry.unit, retry.limit) == ("policy cache", "token", pool.limit_tokens)
    assert retry.tried > pool.blocks and "allocate" in retry.reason
    assert {retry.began} == {event.began for event in heard if isinstance(event, MemoryTimeline)}


def test_a_pool_that_shrinks_grows_again_up_to_half() -> None:
    pool = KvPool(KvShape(2, 1, 4, torch.float32, torch.device("cpu")))
    first = pool.blocks
    assert pool.shrink()
    assert pool.blocks == 0
    taken = pool.take(100)
    pool.check_integrity(taken)
    taken += pool.take(first // 2 - 100)
    with pytest.raises(PoolFullError):
        pool.take(1)
    pool.give_back(taken)
    assert [pool.shrink() for _ in range(40)][-1] is False
