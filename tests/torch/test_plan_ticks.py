"""The planned bytes of a tick and of a draw against the bytes of their tensors; logits are freed between ticks."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.config import load_config
from palmette.engine.cuts import Sampling
from palmette.engine.pieces import Piece
from palmette.engine.sampler import Streams, draw
from palmette.engine.tree_model import TreeModel
from palmette.memory.tracker import TEMPORARY, WEIGHTS, Tracker
from palmette.planner.job import Model
from palmette.planner.models.find_shape import find_shape
from palmette.planner.models.shape import read_shape
from palmette.planner.run_plan import job_of
from palmette.planner.search_sizes import draw_bytes, tick_bytes
from palmette.score.scorer import Candidate
from palmette.score.scorers.likelihood import LikelihoodScorer

SMOLLM2 = Model("smollm2-135m", find_shape("smollm2-135m"), "float32")


@pytest.mark.parametrize(
    ("sampling", "most_above"),
    [
        (Sampling(), 1.1),
        (Sampling(temperature=0.0), 1.1),
        (Sampling(temperature=0.7), 1.1),
        (Sampling(min_p=0.1), 1.1),
        (Sampling(top_k=50), 1.1),
        (Sampling(top_p=0.9, temperature=0.7), 1.1),
        (Sampling(top_k=2000, top_p=0.9), 1.1),
    ],
)
def test_a_draw_takes_no_more_than_planned(sampling: Sampling, most_above: float) -> None:
    rows, vocabulary = 85, 49_152  # As many as are drawn together.
    torch.manual_seed(0)
    logits_RV = torch.randn(rows + 1, vocabulary)
    with Tracker() as tracker, torch.inference_mode():
        picked_RV = logits_RV[torch.arange(rows)]  # A copy, as for rows that are not adjacent.
        draw(picked_RV, Streams(range(rows), [0] * rows), sampling)
    settings = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    policy = {f"policy.{key}": value for key, value in {**settings, "min_p": sampling.min_p}.items()}
    search = job_of(load_config(None, {**policy, "search.width": 200}), served=False).search
    assert tracker.peak_bytes <= draw_bytes(SMOLLM2, search) <= most_above * tracker.peak_bytes


@pytest.mark.parametrize(("forks", "tokens"), [(100, 8), (200, 1)])
def test_a_tick_takes_no_more_than_planned(policy: LlamaForCausalLM, forks: int, tokens: int) -> None:
    tree = TreeModel(policy)
    root = tree.cache.add(None, [index % 20 for index in range(60)])
    tips = [tree.cache.add(root, [index % 20] * tokens) for index in range(forks)]
    model = Model("tiny", read_shape("tiny", policy.config.to_dict()), "float32")
    for ends, count, depth in (([root], 60, 1), (tips, forks * tokens, 2)):
        pieces = [Piece(node, 0, len(node.tokens)) for node in ends]
        tree.cache.reserve([(piece.node, piece.last) for piece in pieces], ends)
        tracker = Tracker()
        tracker.track(
            [*policy.parameters(), *policy.buffers(), *tree.cache.pool.keys, *tree.cache.pool.values], WEIGHTS
        )
        with tracker, torch.inference_mode():
            tree.run(pieces)
        planned = tick_bytes(model, count, depth, 60) + len(ends) * model.shape.outputs * 4
        held = tracker.peak_lines[TEMPORARY]
        assert held <= planned
    assert planned <= 2 * held


def freed_before_the_next(run: Callable[..., Any]) -> tuple[Callable[..., Any], list[bool]]:
    """Return the same function and, for each call after the first, whether the result of the last one was freed."""
    seen: list[bool] = []
    given: list[weakref.ref[Any]] = []

    def watched(*arguments: Any) -> Any:
        if given:
            seen.append(given[-1]() is None)
        logits = run(*arguments)
        given.append(weakref.ref((logits[0] if isinstance(logits, list) else logits).untyped_storage()))
        return logits

    return watched, seen


def test_a_tick_s_logits_are_freed_before_the_next_tick(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalBackend(policy, tokenizer, sampling=Sampling(), batch_rows=64)
    watched, seen = freed_before_the_next(local.tree.run)
    monkeypatch.setattr(local.tree, "run", watched)
    prompt = tuple(tokenizer.encode("<bos>1+2\n", add_special_tokens=False))
    local.expand([Expansion("q", 0, prompt, seed, 12, 1 + seed) for seed in range(8)])
    scorer = LikelihoodScorer(policy, tokenizer, batch_rows=1)
    scoring, scored = freed_before_the_next(scorer.tree.run_every)
    monkeypatch.setattr(scorer.tree, "run_every", scoring)
    scorer.score([Candidate(({"role": "user", "content": "1+2"},), (f"{n}+2=3\n",), False) for n in range(4)])
    assert len(seen) > 3 and len(scored) == 3
    assert all(seen) and all(scored)
