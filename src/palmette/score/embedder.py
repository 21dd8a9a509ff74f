"""The embedder contract: texts as vectors whose angles tell what they mean."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Embedder(Protocol):
    """Turns texts into vectors."""

    name: str

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text, in order."""
