import random

import pytest

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
    assert tree.unique_tokens([2, 3, 4]) == 5 + 3 + 2 + 4 + 1
    assert tree.separate_tokens([2, 3, 4]) == (5 + 3 + 2) + (5 + 3 + 4) + (5 + 1)
    assert tree.shared_tokens([2, 3, 4]) == 5 + 3
    assert tree.shared_tokens([2, 4]) == 5
    assert tree.unique_tokens([]) == 0


def test_counts_agree_with_counting_every_path_by_hand() -> None:
    generator = random.Random(0)
    for _ in range(50):
        tree = Tree(tuple(range(generator.randint(1, 9))))
        for _ in range(generator.randint(1, 40)):
            parent = generator.randrange(len(tree.nodes))
            tokens = tuple(range(generator.randint(0, 6)))
            tree.add(parent, tokens, "", (0.0,) * len(tokens), finished=False)
        leaves = generator.sample(range(len(tree.nodes)), generator.randint(1, len(tree.nodes)))
        paths = [[(node.id, place) for node in tree.path(leaf) for place in range(len(node.tokens))] for leaf in leaves]
        flat = [token for path in paths for token in path]
        assert tree.separate_tokens(leaves) == len(flat)
        assert tree.unique_tokens(leaves) == len(set(flat))
        assert tree.shared_tokens(leaves) == sum(flat.count(token) > 1 for token in set(flat))


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
