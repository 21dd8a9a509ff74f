"""Embeds texts with any SentenceTransformer model."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from palmette.engine.limits import EMBEDDED_TOKENS
from palmette.engine.threads import as_many_as_free
from palmette.memory.heap import mapped_blocks
from palmette.zoo.foreign import as_backend_error

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sentence_transformers import SentenceTransformer


class SentenceEmbedder:
    """Embeds batches of up to `batch_rows` texts and `EMBEDDED_TOKENS` tokens (padded) on the model's device."""

    def __init__(self, model: "SentenceTransformer", name: str, *, batch_rows: int) -> None:
        self._model = model
        self._batch_rows = batch_rows
        self.name = name

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text, in order. Raises BackendError if the model fails."""
        with as_backend_error(f"embedder {self.name} cannot embed"), mapped_blocks(), as_many_as_free():
            lengths = self._lengths(texts)
            vectors: dict[int, np.ndarray] = {}
            for batch in batches(lengths, self._batch_rows, EMBEDDED_TOKENS):
                encoded = self._model.encode(
                    [texts[place] for place in batch],
                    batch_size=len(batch),
                    show_progress_bar=False,
                    convert_to_numpy=True,
                )
                vectors.update(zip(batch, encoded, strict=True))
        return [vectors[place] for place in range(len(texts))]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        longest = self._model.max_seq_length or EMBEDDED_TOKENS
        tokens = self._model.tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        return [len(ids) for ids in tokens]


def batches(lengths: Sequence[int], most_rows: int, most_tokens: int) -> Iterator[list[int]]:
    """Yield batches as indexes into `lengths`, longest text first.

    A batch has at most `most_rows` texts and, padded to its longest text, at most `most_tokens` tokens. A text longer
    than that is a batch by itself.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) == most_rows or (len(batch) + 1) * lengths[batch[0]] > most_tokens):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
