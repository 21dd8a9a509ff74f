"""Vectors from any SentenceTransformer."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from palmette.engine.limits import EMBEDDED_TOKENS
from palmette.memory.heap import mapped_blocks
from palmette.zoo.foreign import as_backend_error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sentence_transformers import SentenceTransformer


class SentenceEmbedder:
    """Embeds up to `batch_rows` texts and `EMBEDDED_TOKENS` tokens at a time, on the model's own device."""

    def __init__(self, model: "SentenceTransformer", name: str, *, batch_rows: int) -> None:
        self._model = model
        self._batch_rows = batch_rows
        self.name = name

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text; see the contract."""
        with as_backend_error(f"embedder {self.name} cannot embed"), mapped_blocks():
            lengths = self._lengths(texts)
            vectors: dict[int, np.ndarray] = {}
            for batch in batches(lengths, self._batch_rows, EMBEDDED_TOKENS):
                given = self._model.encode(
                    [texts[place] for place in batch],
                    batch_size=len(batch),
                    show_progress_bar=False,
                    convert_to_numpy=True,
                )
                vectors.update(zip(batch, given, strict=True))
        return [vectors[place] for place in range(len(texts))]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        longest = self._model.max_seq_length or EMBEDDED_TOKENS
        tokens = self._model.tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        return [len(own) for own in tokens]


def batches(lengths: Sequence[int], most_rows: int, most_tokens: int) -> Iterator[list[int]]:
    """Yield the places of texts to embed together, the longest first; with their padding they keep to both limits.

    A text that is longer than the limit comes alone.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) == most_rows or (len(batch) + 1) * lengths[batch[0]] > most_tokens):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
