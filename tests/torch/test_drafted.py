"""Steps written with drafts against the same steps written without: tokens, endings and held KV must be the same."""

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion, Step
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.engine.engine import Engine, Row
from palmette.engine.pieces import Piece
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel

Prompt = Callable[[str], tuple[int, ...]]
TEXTS = {"a": "1+2", "b": "(3+4)*2-5"}
SAMPLINGS = [Sampling(1.0), Sampling(0.0), Sampling(0.4), Sampling(0.6, top_p=0.8), Sampling(0.5, top_k=4)]


def grown(
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompt: Prompt,
    *,
    sampling: Sampling,
    seed: int,
    rows: int,
    kv_tokens: int | None,
    drafts: bool,
) -> tuple[list[Step], list[int], LocalBackend]:
    """Grow 4 waves of random children below random leaves; return all steps and what was held after each wave."""
    token_bytes = TreeModel(policy).cache.pool.shape.token_bytes
    kv_bytes = None if kv_tokens is None else kv_tokens * token_bytes
    local = LocalBackend(policy, tokenizer, sampling=sampling, batch_rows=rows, kv_bytes=kv_bytes, drafts=drafts)
    cache, rng = local.tree.cache, random.Random(seed)
    paths = {(question, 0): prompt(text) for question, text in TEXTS.items()}
    leaves, steps, held, count = list(paths), list[Step](), list[int](), 0
    for _ in range(4):
        wishes: list[Expansion] = []
        for question, parent in leaves:
            for _ in range(rng.choice([1, 2, 4])):
                count += 1
                limit = rng.choice([6, 16, 30])
                wishes.append(Expansion(question, parent, paths[question, parent], rng.getrandbits(60), limit, count))
        written = local.expand(wishes)
        steps += written
        held.append(cache.pool.taken_bytes)
        cache.check_integrity()
        for wish, step in zip(wishes, written, strict=True):
            paths[wish.question, wish.node or 0] = (*wish.prefix, *step.tokens)
        fresh = [(wish.question, wish.node or 0) for wish in wishes]
        leaves = rng.sample(fresh, min(3, len(fresh)))
        for question, node in fresh:
            if (question, node) not in leaves:
                local.release(question, [node])
    for question, node in paths:
        local.release(question, [node])
    cache.check_integrity()
    assert cache.pool.taken_bytes == 0
    return steps, held, local


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(("rows", "kv_tokens"), [(64, None), (2, None), (64, 170), (3, 150)])
def test_random_trees_are_the_same_with_drafts_and_without(
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompt: Prompt,
    sampling: Sampling,
    rows: int,
    kv_tokens: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted = 0
    rng = random.Random(rows)
    monkeypatch.setattr(  # Any number of guesses, however unlikely they are.
        "palmette.engine.engine.worthwhile", lambda chances, _: [rng.randint(0, min(len(own), 6)) for own in chances]
    )
    for seed in range(2):
        same: Any = {"sampling": sampling, "seed": seed, "rows": rows, "kv_tokens": kv_tokens}
        plain, plain_held, _ = grown(policy, tokenizer, prompt, drafts=False, **same)
        drafted, held, fast = grown(policy, tokenizer, prompt, drafts=True, **same)
        for one, other in zip(plain, drafted, strict=True):
            assert (one.tokens, one.text, one.finish) == (other.tokens, other.text, other.finish)
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        if kv_tokens is None:
            assert held == plain_held
        accepted += fast.acceptance.accepted
    assert accepted > 4


def test_a_text_that_was_written_before_takes_fewer_passes(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    local = LocalBackend(policy, tokenizer, sampling=Sampling(0.0), batch_rows=64, drafts=True)
    first, second = (Expansion("q", 0, prompt("12*12-(7-3)"), 1, 20, node) for node in (1, 2))
    (step,) = local.expand([first])
    calls = local.calls
    assert local.expand([second])[0].tokens == step.tokens
    assert len(step.tokens) > 8
    assert local.calls - calls <= (len(step.tokens) + 1) // 2


def test_small_models_do_not_draft_unless_they_are_told_to(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    local = LocalBackend(policy, tokenizer, sampling=Sampling(0.0), batch_rows=64)
    for node in (1, 2):
        local.expand([Expansion("q", 0, prompt("12*12-(7-3)"), 1, 20, node)])
    assert local.draft_counts == (0, 0)


def test_the_same_waves_make_the_same_passes_again(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    local = LocalBackend(policy, tokenizer, sampling=Sampling(0.4), batch_rows=64, drafts=True)
    calls, counts, before = list[int](), list[tuple[int, int]](), 0
    for _ in range(3):
        local.expand([Expansion("q", 0, prompt("(3+4)*2-5"), seed, 20, seed + 1) for seed in range(6)])
        calls.append(local.calls - before)
        counts.append((local.acceptance.accepted, local.acceptance.checked))
        before = local.calls
        local.release("q", range(7))
    assert calls[0] == calls[1] == calls[2]
    assert counts[0] == counts[1] == counts[2] != (0, 0)


def _is_full(row: Row[str]) -> str | None:
    return "full" if len(row.tokens) == row.limit else None


def ticked(policy: LlamaForCausalLM, tokens: Sequence[int], run_pieces: Any, *, drafts: bool) -> list[list[int]]:
    """Write 6 steps below one prompt with a way to run pieces that may fail; a failed tick is repeated."""
    tree = TreeModel(policy)
    engine: Engine[str] = Engine(tree, Sampling(0.4), max_lanes=64, ended=_is_full, drafts=drafts)
    root = tree.cache.add(None, tokens)
    rows: list[Row[str]] = [Row(root, seed, 24) for seed in range(6)]
    engine.add(rows)
    while any(row.ending is None for row in rows):
        before = [list(row.tokens) for row in rows]
        try:
            engine.tick(run_pieces)
        except MemoryError:
            assert [row.tokens for row in rows] == before
        tree.cache.check_integrity()
        taken = tree.cache.pool.taken_bytes // tree.cache.pool.shape.token_bytes
        beginnings = {tuple(row.tokens[:end]) for row in rows for end in range(1, len(row.tokens) + 1)}
        assert taken <= len(tokens) + len(beginnings)
    for row in rows:
        assert row.node is not None
        tree.cache.drop(row.node)
    tree.cache.drop(root)
    assert tree.cache.pool.taken_bytes == 0
    return [row.tokens for row in rows]


@pytest.mark.parametrize("seed", range(4))
def test_ticks_that_fail_or_split_lanes_write_the_same(
    policy: LlamaForCausalLM, prompt: Prompt, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)

    def torn(items: Sequence[Any], work: Callable[[Sequence[Any]], Any], *, group: Callable[[Any], Hashable]) -> Any:
        """Cut anywhere, also within a lane; sometimes work for nothing, sometimes fail after some pieces."""
        results, start = [], 0
        while start < len(items):
            end = rng.randint(start + 1, len(items))
            results.append(work(items[start:end]))
            if rng.random() < 0.1:
                raise MemoryError
            start = end
        return results

    def whole(items: Sequence[Any], work: Callable[[Sequence[Any]], Any], **_: Any) -> Any:
        return [work(items)]

    monkeypatch.setattr("palmette.engine.engine.worthwhile", lambda chances, _: [min(len(own), 4) for own in chances])
    tokens = prompt("(3+4)*2-5")
    assert ticked(policy, tokens, torn, drafts=True) == ticked(policy, tokens, whole, drafts=False)


def test_a_tick_that_ran_out_of_memory_is_tried_again_without_drafts(
    policy: LlamaForCausalLM, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, drafted, failures = TreeModel.run, 0, 0

    def scarce(self: TreeModel, pieces: Sequence[Piece], every: Any) -> Any:
        nonlocal drafted
        drafted += len(every)
        if every:
            raise MemoryError
        return run(self, pieces, every)

    def retried(items: Sequence[Any], work: Callable[[Sequence[Any]], Any], **_: Any) -> Any:
        nonlocal failures
        try:
            return [work(items)]
        except MemoryError:
            failures += 1
            return [work(items)]

    tokens = prompt("(3+4)*2-5")
    plain = ticked(policy, tokens, retried, drafts=False)
    assert failures == 0
    monkeypatch.setattr(TreeModel, "run", scarce)
    assert ticked(policy, tokens, retried, drafts=True) == plain
    assert drafted >= failures > 0


@torch.inference_mode()
def test_drafts_neither_grow_a_full_pool_nor_evict(
    policy: LlamaForCausalLM, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt("(3+4)*2-5")
    token_bytes = TreeModel(policy).cache.pool.shape.token_bytes
    tree = TreeModel(policy, budget_bytes=(len(tokens) + 24) * token_bytes)
    # Another prompt lies idle in the pool. One step fits beside it almost to its end.
    idle = tree.cache.add(None, tokens[:3])
    tree.cache.reserve([(idle, 3)], [idle])
    tree.run([Piece(idle, 0, 3)])
    evicted: list[CacheNode] = []
    empty = tree.cache.empty

    def watched(node: CacheNode) -> None:
        evicted.append(node)
        empty(node)

    monkeypatch.setattr(tree.cache, "empty", watched)
    engine: Engine[str] = Engine(tree, Sampling(0.0), max_lanes=64, ended=_is_full)
    row: Row[str] = Row(tree.cache.add(None, tokens), 1, 21)
    engine.add([row])
    while row.ending is None:
        engine.tick()
        tree.cache.check_integrity()
    assert engine.acceptance.accepted > 0
    assert idle not in evicted and idle.computed == 3
