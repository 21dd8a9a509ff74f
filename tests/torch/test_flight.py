"""Steps started and finished on the engine: given up halfway, interrupted, in batches of other sizes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import palmette
from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.errors import BackendError
from palmette.score.scorers.likelihood import LikelihoodScorer

Prompt = Callable[[str], tuple[int, ...]]
QUESTIONS = ["1+2*3", "(3+4)*2-5", "9-5+2"]


def backend(policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: int = 64) -> LocalBackend:
    return LocalBackend(policy, tokenizer, sampling=Sampling(), batch_rows=rows)


def wave(prompt: Prompt, question: str, first: int = 1) -> list[Expansion]:
    return [Expansion(question, 0, prompt("(3+4)*2-5"), first + child, 24, first + child) for child in range(8)]


@contextmanager
def failing(model: LlamaForCausalLM, call: int) -> Iterator[None]:
    """Let the model fail for good at its n-th call."""
    calls = 0

    def hook(module: Any, inputs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise ValueError("broken")

    handle = model.model.layers[-1].register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def test_steps_are_handed_over_when_they_are_done_and_more_can_be_started_meanwhile(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt
) -> None:
    first, later = wave(prompt, "a"), wave(prompt, "b", first=50)
    expected = dict(zip([*first, *later], backend(policy, tokenizer).expand([*first, *later]), strict=True))
    local = backend(policy, tokenizer)
    local.start(first)
    done = local.finished()
    shortest = min(len(expected[one].tokens) for one in first)
    assert [one for one, _ in done] == [one for one in first if len(expected[one].tokens) == shortest]
    assert local.calls <= shortest  # Fewer where drafted tokens were the ones drawn.
    local.start(later)
    while more := local.finished():
        done += more
    assert {one: step.tokens for one, step in done} == {one: step.tokens for one, step in expected.items()}
    assert len(done) == 16
    for question, nodes in (("a", range(9)), ("b", [0, *range(50, 58)])):
        local.release(question, list(nodes))
    local.tree.cache.check_integrity()
    assert local.tree.cache.pool.taken_bytes == 0


@pytest.mark.parametrize("rows", [64, 3])
def test_steps_that_are_released_in_flight_are_given_up_and_the_others_go_on(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: Prompt, rows: int
) -> None:
    kept, dropped = wave(prompt, "a"), wave(prompt, "b", first=50)
    expected = backend(policy, tokenizer).expand(kept)
    local = backend(policy, tokenizer, rows)
    local.start([one for pair in zip(kept, dropped, strict=True) for one in pair])
    done = dict(local.finished())
    local.release("b", [0, *range(50, 58)])
    while more := local.finished():
        assert all(one.question == "a" for one, _ in more)
        done.update(more)
    assert [done[one].tokens for one in kept] == [step.tokens for step in expected]
    local.release("a", list(range(9)))
    local.tree.cache.check_integrity()
    assert local.tree.cache.pool.taken_bytes == 0


def trees(searcher: palmette.Searcher) -> list[list[tuple[int | None, tuple[int, ...], float | None]]]:
    results = searcher.search(QUESTIONS)
    return [[(node.parent, tuple(node.tokens), node.score) for node in result.tree.nodes] for result in results]


@pytest.mark.parametrize("strategy", ["best_of_n", "rebase"])
@pytest.mark.parametrize("failed", [1, 3, 14])
def test_a_searcher_can_be_used_again_after_a_search_that_failed_or_was_given_up(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, strategy: str, failed: int
) -> None:
    options: dict[str, Any] = {"width": 5, "depth": 4, "step_tokens": 12, "total_tokens": 40}
    local, scorer = backend(policy, tokenizer), LikelihoodScorer(policy, tokenizer, batch_rows=4)
    with palmette.Searcher(local, scorer, strategy, settings={"task.format": "ladder"}, **options) as searcher:
        expected = trees(searcher)
        with failing(policy, failed), pytest.raises(BackendError, match="broken"):
            searcher.search(QUESTIONS)
        for tree in (local.tree, scorer.tree):
            tree.cache.check_integrity()
            assert tree.cache.pool.taken_bytes == 0
        stream = searcher.stream(QUESTIONS)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert local.tree.cache.pool.taken_bytes == scorer.tree.cache.pool.taken_bytes == 0
        assert trees(searcher) == expected


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_best_of_n_grows_the_same_trees_in_batches_of_any_size(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: int
) -> None:
    def grown(rows: int, in_flight: int) -> object:
        options: dict[str, Any] = {"width": 5, "depth": 4, "step_tokens": 12, "total_tokens": 40}
        local, scorer = backend(policy, tokenizer, rows), LikelihoodScorer(policy, tokenizer, batch_rows=rows)
        settings = {"search.questions_in_flight": in_flight, "task.format": "ladder"}
        with palmette.Searcher(local, scorer, "best_of_n", settings=settings, **options) as searcher:
            return trees(searcher)

    assert grown(rows, 1 + rows % 3) == grown(64, 3)
