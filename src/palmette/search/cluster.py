"""Clusters texts of equal meaning by the cosine distance of their embeddings.

As published for ETS: average linkage on cosine distance, cut at 0.05. Two additions make it safe with any embedder:
equal texts always share a cluster, even if their vectors differ, and a zero vector, for which cosine is undefined, has
distance 1 to every text that is not equal to its own.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from palmette.errors import BackendError
from palmette.own_parts import telling
from palmette.score.scorer import Embedder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

CUT = 0.05

Clusterer = Callable[[Sequence[Sequence[str]]], list[list[int]]]
"""Takes groups of texts. Returns one label for each text; texts of the same group with the same label are a cluster."""


def by_meaning(embedder: Embedder, cut: float = CUT) -> Clusterer:
    """Return a clusterer that embeds the texts of all groups in one call to `embedder`, each distinct text once.

    Clusters never span two groups. `cut` is the cosine distance below which clusters are joined.
    """

    def cluster(groups: Sequence[Sequence[str]]) -> list[list[int]]:
        # A group whose texts are all equal is one cluster: no vectors needed.
        distinct = list(dict.fromkeys(text for group in groups if len(set(group)) > 1 for text in group))
        places = {text: place for place, text in enumerate(distinct)}
        with telling("embedder", embedder.name, "embed", BackendError):
            table = checked(distinct, embedder.embed(distinct) if distinct else [], embedder.name)
        return [
            labels(group, table[[places[text] for text in group]], cut) if group[0] in places else [0] * len(group)
            for group in groups
        ]

    return cluster


def labels(texts: Sequence[str], vectors: "NDArray[np.float64]", cut: float = CUT) -> list[int]:
    """Return one cluster label for each text, numbered from 0 in order of first appearance.

    `vectors` holds one row of finite numbers for each text.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]
    from scipy.spatial.distance import squareform  # type: ignore[import-untyped]

    if len(texts) < 2:
        return [0] * len(texts)
    tree = linkage(squareform(_distances(texts, vectors), checks=False), method="average")
    return _by_appearance(fcluster(tree, cut, criterion="distance").tolist())


def checked(texts: Sequence[str], vectors: "ArrayLike", embedder: str) -> "NDArray[np.float64]":
    """Return the vectors as an array with one row for each text.

    Raises BackendError, which names the `embedder`, if there is not one vector for each text, or if a vector holds NaN
    or infinity.
    """
    import numpy as np

    table = np.asarray(vectors, dtype=np.float64)
    if not texts:
        return table
    if table.ndim != 2 or len(table) != len(texts) or not table.shape[1]:
        raise BackendError(
            f"embedder {embedder} returned vectors of shape {table.shape} for {len(texts)} texts, not one vector "
            "for each text; use another embedder, or lambda_diversity 0 to search without one"
        )
    wrong = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(wrong):
        raise BackendError(
            f"embedder {embedder} returned NaN or infinity for {len(wrong)} of {len(texts)} texts, the first is "
            f"{texts[wrong[0]][:60]!r}; use another embedder, or lambda_diversity 0 to search without one"
        )
    return table


def _distances(texts: Sequence[str], table: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the matrix of 1 - cosine for every pair of texts, with exactly 0 for equal texts."""
    import numpy as np

    # Divide by the largest entry before squaring: the square of 1e200 is infinite, that of 1e-200 is zero.
    largest = np.abs(table).max(axis=1, keepdims=True)
    scaled = table / np.where(largest > 0, largest, 1)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    units = scaled / np.where(lengths > 0, lengths, 1)
    distances: NDArray[np.float64] = np.clip(1 - units @ units.T, 0, 2)
    first: dict[str, int] = {}
    same = np.array([first.setdefault(text, place) for place, text in enumerate(texts)])
    # Equal texts use the vector of the first of them: vectors of equal texts may differ in the last bits.
    distances = distances[np.ix_(same, same)]
    distances[same[:, None] == same[None, :]] = 0
    return distances


def _by_appearance(names: Sequence[int]) -> list[int]:
    """Renumber labels from 0 in the order in which they first appear."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
