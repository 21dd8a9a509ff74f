"""Vectors from any SentenceTransformer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palmette.zoo.foreign import told_as

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sentence_transformers import SentenceTransformer


class SentenceEmbedder:
    """Embeds in batches of `batch_rows`, on the model's own device."""

    def __init__(self, model: "SentenceTransformer", name: str, *, batch_rows: int) -> None:
        self._model = model
        self._batch_rows = batch_rows
        self.name = name

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text; see the contract."""
        with told_as(f"embedder {self.name} cannot embed"):
            return self._model.encode(
                list(texts), batch_size=self._batch_rows, show_progress_bar=False, convert_to_numpy=True
            )
