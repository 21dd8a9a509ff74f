from collections.abc import Sequence

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]

from palmette.errors import BackendError
from palmette.search.cluster import by_meaning, checked
from palmette.search.cluster import labels as labels_of


def labels(texts: list[str], vectors: object) -> list[int]:
    """Group as the clusterer does: check the embedder's vectors, then link them."""
    return labels_of(texts, checked(texts, vectors, "minilm"))  # type: ignore[arg-type]


class Angles:
    """Embeds a number as a vector in the plane at that angle; keeps what it was asked."""

    name = "angles"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.append(list(texts))
        return turned(*map(float, texts))


def turned(*degrees: float) -> list[list[float]]:
    """Return vectors in the plane at these angles, of different lengths."""
    return [
        [(1 + place) * float(np.cos(np.radians(angle))), (1 + place) * float(np.sin(np.radians(angle)))]
        for place, angle in enumerate(degrees)
    ]


def test_texts_within_five_hundredths_share_a_cluster_numbered_by_first_appearance() -> None:
    # 1 - cos 18 degrees is 0.0489, 1 - cos 19 degrees is 0.0545.
    assert labels(["a", "b"], turned(0, 18)) == [0, 0]
    assert labels(["a", "b"], turned(0, 19)) == [0, 1]
    assert labels(["a", "b", "c", "d"], turned(90, 0, 91, 2)) == [0, 1, 0, 1]


def test_linkage_is_by_the_average() -> None:
    # 14 and 20 degrees join at 0.005. From them 0 is at 0.030 and 0.060, 0.045 on average: in, though not of 20.
    assert labels(["a", "b", "c"], turned(0, 14, 20)) == [0, 0, 0]
    # 14 and 24 join at 0.015. From them 0 is at 0.030 and 0.086, 0.058 on average: out, though not of 14.
    assert labels(["a", "b", "c"], turned(0, 14, 24)) == [0, 1, 1]


def test_labels_equal_those_of_the_published_call() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        count = int(rng.integers(2, 40))
        centers = rng.normal(size=(4, 12))
        vectors = centers[rng.integers(0, 4, count)] + rng.normal(size=(count, 12)) * rng.choice([0.1, 0.25, 0.4])
        found = labels([str(i) for i in range(count)], vectors)
        published = fcluster(linkage(vectors, method="average", metric="cosine"), 0.05, criterion="distance")
        assert len(set(zip(found, published.tolist(), strict=True))) == len(set(found)) == len(set(published.tolist()))
        assert [found.index(label) for label in sorted(set(found))] == sorted(
            found.index(label) for label in set(found)
        )


def test_no_text_and_one_text_need_no_linkage() -> None:
    assert labels([], []) == []
    assert labels(["alone"], [[1.0, 2.0]]) == [0]
    assert labels(["alone"], [[0.0, 0.0]]) == [0]


def test_all_alike_is_one_cluster() -> None:
    assert labels(["same"] * 5, [[0.3, -0.1]] * 5) == [0] * 5
    assert labels(list("abcde"), [[0.3, -0.1]] * 5) == [0] * 5


def test_equal_texts_share_a_cluster_whatever_their_vectors_are() -> None:
    assert labels(["a", "b", "a"], turned(0, 90, 180)) == [0, 1, 0]
    assert labels(["a", "b", "a"], [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]) == [0, 1, 0]


def test_a_zero_vector_is_far_from_all_but_its_equals() -> None:
    assert labels(["a", "b", "c"], [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]) == [0, 1, 2]


def test_lengths_at_the_ends_of_the_floats_do_not_matter() -> None:
    assert labels(["a", "b", "c"], [[1e300, 1e300], [1e-300, 1e-300], [-1e300, 1e300]]) == [0, 0, 1]
    assert labels(["a", "b"], np.array([[5e-324, 0.0], [1e308, 0.0]])) == [0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_vector_that_is_no_number_is_the_embedders_fault(bad: float) -> None:
    with pytest.raises(BackendError, match=r"embedder minilm .* 1 of 2 texts.*'second'.*lambda_diversity 0"):
        labels(["first", "second"], [[1.0, 0.0], [0.0, bad]])
    with pytest.raises(BackendError, match="minilm"):
        labels(["one"], [[bad]])


@pytest.mark.parametrize("vectors", [[[1.0, 2.0]], [1.0, 2.0], [[[1.0]], [[2.0]]], np.zeros((2, 0))])
def test_vectors_that_do_not_match_the_texts_are_the_embedders_fault(vectors: object) -> None:
    with pytest.raises(BackendError, match="embedder minilm returned vectors of shape"):
        labels(["a", "b"], vectors)


def test_the_order_of_texts_changes_only_the_numbers() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(3, 8))[rng.integers(0, 3, 20)] + 0.05 * rng.normal(size=(20, 8))
    texts = [str(i) for i in range(20)]
    found = labels(texts, vectors)
    order = rng.permutation(20)
    again = labels([texts[i] for i in order], vectors[order])
    pairs = {(found[i], again[place]) for place, i in enumerate(order)}
    assert len(pairs) == len(set(found))


def test_all_groups_are_embedded_in_one_call_and_each_text_once() -> None:
    embedder = Angles()
    found = by_meaning(embedder)([["0", "1", "90"], ["1", "0", "1"], ["7", "7"], ["5"]])
    assert found == [[0, 0, 1], [0, 0, 0], [0, 0], [0]]
    assert embedder.asked == [["0", "1", "90"]]  # groups whose texts are all alike need no vectors


def test_groups_do_not_see_each_other() -> None:
    # 0 and 18 degrees join alone (0.049); with 20 and 21 degrees in one group they would be averaged out.
    assert by_meaning(Angles())([["0", "18"], ["20", "21"]]) == [[0, 0], [0, 0]]
    assert by_meaning(Angles())([["0", "18", "20", "21"]]) == [[0, 1, 1, 1]]


def test_the_cut_is_a_setting() -> None:
    assert by_meaning(Angles(), cut=0.2)([["0", "30"]]) == [[0, 0]]
    assert by_meaning(Angles(), cut=0.0)([["0", "1", "0"]]) == [[0, 1, 0]]


def test_nothing_to_group_asks_nobody() -> None:
    embedder = Angles()
    assert by_meaning(embedder)([]) == []
    assert by_meaning(embedder)([["a", "a"]]) == [[0, 0]]
    assert embedder.asked == []
