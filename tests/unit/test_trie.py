"""Samples as a trie: every distinct prefix has one slot, every slot is computed once, no visible score is left out."""

import random
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.errors import BudgetError, ConfigError
from palmette.train.packed.passes import PASS_TOKENS, Step, depth_first, distinct_tokens, packed_batches
from palmette.train.packed.sharing import batches_of, check_sharing
from palmette.train.packed.tiles import BLOCK_SLOTS, tiles_of
from palmette.train.packed.trie import Node, Trie, build_trie
from palmette.train.samples import Sample


def sample(prompt: str, response: str, mask: tuple[bool, ...] | None = None) -> Sample:
    """Tokens are letters, a is 0."""
    tokens = [tuple(ord(letter) - ord("a") for letter in text) for text in (prompt, response)]
    return Sample(tokens[0], tokens[1], (1.0,) * len(response), mask=mask)


def drawn(seed: int, count: int, *, letters: int = 2, longest: int = 8) -> list[Sample]:
    rng = random.Random(seed)

    def text() -> str:
        return "".join(rng.choice("abcdef"[:letters]) for _ in range(rng.randint(1, longest)))

    return [sample(text(), text()) for _ in range(count)]


some_samples = st.builds(drawn, st.integers(0, 10**6), st.integers(1, 14), letters=st.integers(1, 3))


def test_a_group_and_the_step_below_one_of_its_responses_share_all_they_can() -> None:
    # Fed are abcd, abce and, as the step below the first response, abcdx and abcdxy: the last token predicts nothing.
    samples = [sample("ab", "ceq"), sample("ab", "cdx"), sample("abcdx", "yz")]
    trie = build_trie(samples)
    assert trie.order == (1, 2, 0)
    # Slots 0 to 2 are abc, 3 is d, 4 and 5 are x and y, 6 is e.
    assert "".join("abcdefghijklmnopqrstuvwxyz"[token] for token in trie.tokens) == "abcdxye"
    assert trie.depths == (0, 1, 2, 3, 4, 5, 3)
    assert trie.nodes == (Node(0, 3, 7, 0, None), Node(3, 4, 6, 3, 0), Node(4, 6, 6, 4, 1), Node(6, 7, 7, 3, 0))
    assert trie.paths == ((0, 1, 2, 3), (0, 1, 2, 3, 4, 5), (0, 1, 2, 6))
    # c is predicted once for two samples, and slot 2 predicts d and e.
    letters = [(slot, "abcdefghijklmnopqrstuvwxyz"[token]) for slot, token in trie.predictions]
    assert letters == [(1, "c"), (2, "d"), (2, "e"), (3, "x"), (4, "y"), (5, "z"), (6, "q")]
    assert trie.predicted == ((0, 1, 3), (4, 5), (0, 2, 6))
    assert trie.at == (0, 0, 1, 3, 4, 5, 6, 7)


def test_a_token_that_does_not_count_is_not_predicted() -> None:
    trie = build_trie([sample("a", "bcd", mask=(True, False, True))])
    assert trie.predictions == ((0, 1), (2, 3)) and trie.predicted == ((0, 1),)


@given(some_samples)
def test_slots_are_the_distinct_prefixes_and_visible_are_those_of_the_own_path(samples: list[Sample]) -> None:
    trie = build_trie(samples)
    rows = [one.prompt + one.response[:-1] for one in samples]
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert len(trie.tokens) == len(prefixes) == distinct_tokens(samples)
    for index, path in zip(trie.order, trie.paths, strict=True):
        assert tuple(trie.tokens[slot] for slot in path) == rows[index]
        assert [trie.depths[slot] for slot in path] == list(range(len(path)))
        assert [slot for slot in range(path[-1] + 1) if sees(trie, path[-1], slot)] == list(path)
    for number, node in enumerate(trie.nodes):
        assert all(node.first <= child.first < node.end for child in trie.nodes if child.parent == number)


@cache
def ends(nodes: tuple[Node, ...]) -> list[int]:
    return [node.end for node in nodes for _ in range(node.first, node.last)]


def sees(trie: Trie, query: int, key: int) -> bool:
    return key <= query < ends(trie.nodes)[key]


@given(some_samples, st.integers(0, 40))
def test_depth_first_computes_every_slot_once_and_holds_no_more_than_allowed(samples: list[Sample], more: int) -> None:
    trie = build_trie(samples)
    most = max(one.fed_tokens for one in samples) + more
    opened: list[Step] = []
    computed: list[int] = []
    for step in depth_first(trie, most):
        if step.kind == "close":
            assert opened.pop() == Step("open", step.first, step.last)
            continue
        computed += range(step.first, step.last)
        above = {slot for one in opened for slot in range(one.first, one.last)}
        assert len(above) + step.last - step.first <= most
        for slot in range(step.first, step.last):  # All it sees is there.
            assert {key for key in range(slot) if sees(trie, slot, key)} <= above | set(range(step.first, slot))
        if step.kind == "open":
            opened.append(step)
    assert not opened and computed == list(range(len(trie.tokens)))


def test_depth_first_opens_what_does_not_fit() -> None:
    # aaa above b, cc and d d d d: with 7 tokens the prompt stays open, its first two branches run together.
    trie = build_trie([sample("aaa", "bz"), sample("aaa", "ccz"), sample("aaa", "ddddz")])
    assert depth_first(trie, 10) == [Step("run", 0, 10)]
    assert depth_first(trie, 7) == [
        Step("open", 0, 3),
        Step("run", 3, 6),
        Step("run", 6, 10),
        Step("close", 0, 3),
    ]


def cost(batches: list[list[Sample]]) -> int:
    return sum(distinct_tokens(batch) + PASS_TOKENS for batch in batches)


@settings(deadline=None)
@given(st.builds(drawn, st.integers(0, 10**6), st.integers(1, 8)), st.integers(0, 25))
def test_no_way_to_cut_a_sequence_of_samples_is_cheaper(samples: list[Sample], more: int) -> None:
    most = max(one.fed_tokens for one in samples) + more
    batches = packed_batches(samples, most)
    flat = [one for batch in batches for one in batch]
    assert sorted(map(id, flat)) == sorted(map(id, samples))
    assert all(distinct_tokens(batch) <= most for batch in batches)
    best = cost(batches)
    for cuts in product((False, True), repeat=len(flat) - 1):
        ways: list[list[Sample]] = [[flat[0]]]
        for cut, one in zip(cuts, flat[1:], strict=True):
            if cut:
                ways.append([])
            ways[-1].append(one)
        if all(distinct_tokens(batch) <= most for batch in ways):
            assert best <= cost(ways)


def test_a_sample_that_does_not_fit_is_refused_with_a_value_that_works() -> None:
    for sharing in ("auto", "off", "packed", "depth_first"):
        with pytest.raises(BudgetError, match="a sample of 9 tokens does not fit a micro-batch of 8: .* to 9 or more"):
            batches_of([sample("aaaaa", "bbbbb")], 8, sharing)
    with pytest.raises(ConfigError, match="sharing is 'tree': give one of auto, off, packed, depth_first"):
        check_sharing("tree")


def test_auto_shares_where_that_computes_fewer_tokens() -> None:
    prompt = "".join("abcdef"[place % 6] for place in range(300))
    group = [sample(prompt, letter * 40) for letter in "abcdefgh"]
    alone = [sample(letter + prompt[:59], letter * 40) for letter in "abcdefgh"]
    assert batches_of(group, 1000, "auto").mode == "packed"
    assert batches_of(alone, 1000, "auto").mode == "off"
    # 300 tokens of the prompt again for each response, or kept while responses run two at a time.
    assert batches_of(group, 380, "auto").mode == "depth_first"


@settings(deadline=None, max_examples=20)
@given(
    st.builds(drawn, st.integers(0, 10**6), st.integers(1, 8), longest=st.just(80)),
    st.integers(0, 300),
    st.integers(1, 5000),
)
def test_tiles_cover_every_visible_score_once_and_unmasked_ones_nothing_else(
    samples: list[Sample], more: int, most_scores: int
) -> None:
    trie = build_trie(samples)
    opened: list[Step] = []
    for step in depth_first(trie, max(one.fed_tokens for one in samples) + more):
        if step.kind == "close":
            opened.pop()
            continue
        nodes = [node for node in trie.nodes if step.first <= node.first < step.last]
        above = [one.last - one.first for one in opened]
        found: list[tuple[int, int]] = []
        bounds = ends(trie.nodes)
        for tile in tiles_of(nodes, step.first, step.last, above, most_scores):
            start = step.first if tile.above is None else opened[tile.above].first
            for query in range(step.first + tile.query_first, step.first + tile.query_last):
                for key in range(start + tile.key_first, start + tile.key_last):
                    if key <= query < bounds[key]:
                        found.append((query, key))
                    else:
                        assert tile.masked
            if tile.masked:
                assert tile.query_last - tile.query_first <= BLOCK_SLOTS
        visible = [
            (query, key) for query in range(step.first, step.last) for key in range(query + 1) if query < bounds[key]
        ]
        assert sorted(found) == visible
        if step.kind == "open":
            opened.append(step)
