import random
from collections import Counter

import pytest

from palmette.prefixes import KvCounts, Prefixes
from palmette.tree import Tree


def grown() -> Tree:
    """Return prompt(5) -> a(3) -> b(2), c(4); prompt -> d(1)."""
    tree = Tree((1, 2, 3, 4, 5))
    a = tree.add(0, (6, 7, 8), "a", (0.0,) * 3, finished=False)
    tree.add(a.id, (9, 10), "b", (0.0,) * 2, finished=True)
    tree.add(a.id, (11, 12, 13, 14), "c", (0.0,) * 4, finished=False)
    tree.add(0, (15,), "d", (0.0,), finished=False)
    return tree


def test_a_token_is_counted_once_however_many_leaves_share_it() -> None:
    tree = grown()
    assert tree.distinct_tokens([2, 3, 4]) == 5 + 3 + 2 + 4 + 1
    # The last tokens of the three branches have no KV yet.
    unshared = (5 + 3 + 1) + (5 + 3 + 3) + (5 + 0)
    assert tree.kv_counts([2, 3, 4]) == KvCounts(held=5 + 3 + 1 + 3 + 0, shared=5 + 3, unshared=unshared)
    assert tree.kv_counts([2, 4]).shared == 5
    assert tree.kv_counts([1, 3]).held == 5 + 3 + 3  # 1 is above 3, which has gone on: its last token has its KV
    assert tree.distinct_tokens([]) == tree.kv_counts([]).held == 0


def test_siblings_are_counted_once_as_far_as_their_tokens_are_equal() -> None:
    tree = Tree((1, 2))
    steps = ((3, 4, 5), (3, 4, 5), (3, 4, 6))
    first, copy, other = (tree.add(0, tokens, "", (), finished=False).id for tokens in steps)
    assert tree.kv_counts([first, copy]) == KvCounts(held=4, shared=4, unshared=8)
    assert tree.kv_counts([first, copy, other]) == KvCounts(held=4, shared=4, unshared=12)
    assert tree.distinct_tokens([first, copy, other]) == 2 + 2 + 1 + 1
    assert tree.place(first) == tree.place(copy) != tree.place(other)
    below = [tree.add(parent, (7, 8), "", (), finished=False).id for parent in (first, copy, other)]
    assert tree.kv_counts(below) == KvCounts(held=2 + 2 + 2 * (1 + 1), shared=2 + 2 + 1 + 1, unshared=3 * 6)
    assert tree.place(below[0]) == tree.place(below[1]) != tree.place(below[2])


def test_counts_agree_with_counting_every_path_by_hand() -> None:
    generator = random.Random(0)
    for _ in range(50):
        tree = Tree(tuple(range(generator.randint(1, 9))))
        for _ in range(generator.randint(1, 40)):
            parent = generator.randrange(len(tree.nodes))
            tokens = tuple(generator.choices(range(generator.choice((1, 2, 9))), k=generator.randint(0, 6)))
            tree.add(parent, tokens, "", (0.0,) * len(tokens), finished=False)
            if generator.random() < 0.3:  # Also while the tree grows: later steps split what was counted.
                _agrees(tree, generator)
        _agrees(tree, generator)


def _agrees(tree: Tree, generator: random.Random) -> None:
    leaves = generator.sample(range(len(tree.nodes)), generator.randint(1, len(tree.nodes)))
    paths = [tree.path_tokens(leaf) for leaf in leaves]
    assert tree.distinct_tokens(leaves) == len({path[:end] for path in paths for end in range(1, len(path) + 1)})
    computed = Counter(path[:end] for path in paths for end in range(1, len(path)))
    shared = sum(count > 1 for count in computed.values())
    assert tree.kv_counts(leaves) == KvCounts(len(computed), shared, computed.total())
    for leaf, path in zip(leaves, paths, strict=True):
        for other, tokens in zip(leaves, paths, strict=True):
            assert (tree.place(leaf) == tree.place(other)) == (path == tokens)


def test_a_large_tree_is_counted_in_a_step_or_two_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5,000 steps of 30 tokens, counted after every wave of 100: work by the number of nodes on paths, not its square.
    visited = 0
    length = Prefixes.length

    def counted(prefixes: Prefixes, place: int) -> int:
        nonlocal visited
        visited += 1
        return length(prefixes, place)

    monkeypatch.setattr(Prefixes, "length", counted)
    generator, tree, leaves = random.Random(0), Tree(tuple(range(50))), [0]
    for _ in range(50):
        parents = generator.choices(leaves, k=100)
        steps = [tuple(generator.choices(range(2), k=30)) for _ in parents]
        leaves = [tree.add(*step, "", (), finished=False).id for step in zip(parents, steps, strict=True)]
        visited = 0
        tree.kv_counts(leaves)
        on_paths = {node.id for leaf in leaves for node in tree.path(leaf)}
        assert visited <= 2 * len(on_paths)


def test_a_path_reads_from_the_prompt_to_the_leaf() -> None:
    tree = grown()
    assert [node.id for node in tree.path(3)] == [0, 1, 3]
    assert tree.path_tokens(3) == (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14)
    assert tree.solution(3) == "ac"
    assert tree.generated_tokens() == 10
    assert tree.nodes[3].depth == 2


def test_nothing_grows_below_a_finished_step() -> None:
    with pytest.raises(ValueError, match="node 2 is finished"):
        grown().add(2, (1,), "x", (0.0,), finished=False)


def test_scores_skip_steps_that_were_never_scored() -> None:
    tree = grown()
    tree.nodes[3].score = 0.25
    assert tree.scores(3) == [0.25]
