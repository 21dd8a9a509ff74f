"""Attention by tiles against the same written out with one mask over all slots."""

import random
from typing import Any

import pytest
import torch

from palmette.engine.attention import Mask
from palmette.train.packed.attention import Pass, attend, weigh
from palmette.train.packed.passes import depth_first
from palmette.train.packed.tiles import tiles_of
from palmette.train.packed.trie import Trie, build_trie
from palmette.train.samples import Sample

GROUPS, HEADS, WIDTH, VALUE_WIDTH = 2, 6, 8, 5
"""Three query heads to a KV head, and values of another width than keys."""


def trie_of(seed: int, count: int, longest: int) -> Trie:
    rng = random.Random(seed)
    samples: list[Sample] = []
    for _ in range(count):
        # Half of them go on from what another one begins with.
        stem = rng.choice(samples).prompt if samples and rng.random() < 0.7 else ()
        prompt = stem + tuple(rng.randrange(3) for _ in range(rng.randint(1, longest)))
        samples.append(Sample(prompt, (1, 2, 0), (1.0,) * 3))
    return build_trie(samples)


def numbers(trie: Trie, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, width: int) -> torch.Tensor:
        made = torch.randn(1, heads, len(trie.tokens), width, generator=generator, dtype=torch.float64)
        return (2 * made).requires_grad_()

    return normal(HEADS, WIDTH), normal(GROUPS, WIDTH), normal(GROUPS, VALUE_WIDTH)


def hidden_scores(trie: Trie, window: int | None) -> torch.Tensor:
    paths = {slot: path[: place + 1] for path in trie.paths for place, slot in enumerate(path)}
    hidden = torch.ones(len(trie.tokens), len(trie.tokens), dtype=torch.bool)
    for slot, path in paths.items():
        hidden[slot, list(path[-window:] if window else path)] = False
    return hidden


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    key, value = key.repeat_interleave(HEADS // GROUPS, 1), value.repeat_interleave(HEADS // GROUPS, 1)
    scores = query @ key.transpose(2, 3) * 0.3
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def by_tiles(
    trie: Trie, tensors: Any, most: int, window: int | None, softcap: float | None, most_scores: int
) -> torch.Tensor:
    query, key, value = tensors
    mask = Mask(None if window is None else lambda one, other: one - other < window)
    opened: list[tuple[int, int]] = []
    results = []
    for step in depth_first(trie, most):
        if step.kind == "close":
            opened.pop()
            continue
        first, last = step.first, step.last
        nodes = [node for node in trie.nodes if first <= node.first < last]
        ends = [min(node.end, last) - first for node in nodes for _ in range(node.first, node.last)]
        above = [
            (torch.tensor(trie.depths[start:stop]), {0: (key[:, :, start:stop], value[:, :, start:stop])})
            for start, stop in opened
        ]
        made = Pass(
            tiles=tiles_of(nodes, first, last, [stop - start for start, stop in opened], most_scores),
            depths_T=torch.tensor(trie.depths[first:last]),
            ends_T=torch.tensor(ends),
            above=above,
        )
        own = key[:, :, first:last], value[:, :, first:last]
        results.append(
            attend(
                query[:, :, first:last],
                own,
                [keys_values[0] for _, keys_values in above],
                made.masked_tiles(mask),
                scale=0.3,
                softcap=softcap,
            )
        )
        if step.kind == "open":
            opened.append((first, last))
    return torch.cat(results, 2)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 7, 200])
@pytest.mark.parametrize(("count", "longest", "most_scores"), [(1, 300, 900), (12, 6, 100), (9, 90, 10_000)])
@pytest.mark.parametrize("whole", [True, False])
def test_attention_and_its_gradients_are_those_of_one_large_mask(
    softcap: float | None, window: int | None, count: int, longest: int, most_scores: int, whole: bool
) -> None:
    trie = trie_of(count, count, longest)
    most = len(trie.tokens) if whole else max(map(len, trie.paths))
    tensors = numbers(trie, 0)
    found = by_tiles(trie, tensors, most, window, softcap, most_scores)
    expected = written_out(*tensors, hidden_scores(trie, window), softcap)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad(found, tensors, upstream)
    theirs = torch.autograd.grad(expected, tensors, upstream)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_scores_far_apart_lose_nothing() -> None:
    # Tiles come in any order: the largest score of a query may be in the first one or in the last.
    trie = trie_of(3, 3, 200)
    query, key, value = numbers(trie, 2)
    tensors = (query.detach() * 60).requires_grad_(), key, value
    found = by_tiles(trie, tensors, len(trie.tokens), None, None, 500)
    torch.testing.assert_close(found, written_out(*tensors, hidden_scores(trie, None), None), rtol=0, atol=1e-12)
    assert bool(torch.isfinite(torch.stack([grad.sum() for grad in torch.autograd.grad(found.sum(), tensors)])).all())


def test_weights_are_exact_or_zero_and_their_products_with_gradients_are_normal_numbers() -> None:
    logs = torch.tensor([[[3.0]]])
    scores = torch.tensor([[[-1e30, 3.0, 2.0, -46.0, -60.0, -90.0, -120.0]]])
    weights = weigh(scores.clone(), logs)[0, 0]
    torch.testing.assert_close(weights[1:4], torch.tensor([0.0, -1.0, -49.0]).exp(), rtol=1e-6, atol=0)
    assert weights[[0, 4, 5, 6]].tolist() == [0.0] * 4
    products = weights * 1e-14
    assert bool(((products == 0) == (weights == 0)).all())
    assert float(products[products > 0].min()) > torch.finfo(torch.float32).tiny


def test_half_precision_is_computed_in_float32() -> None:
    trie = trie_of(4, 5, 60)
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in numbers(trie, 3)]
    wide = [tensor.detach().double().requires_grad_() for tensor in narrow]
    found = by_tiles(trie, narrow, len(trie.tokens), None, None, 1000)
    expected = by_tiles(trie, wide, len(trie.tokens), None, None, 1000)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0.01, atol=0.01)
    grads = torch.autograd.grad(found.sum(), narrow)
    for mine, other in zip(grads, torch.autograd.grad(expected.sum(), wide), strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine.double(), other, rtol=0.02, atol=0.02 * float(other.abs().max()))
