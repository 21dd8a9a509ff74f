"""A real embedder, whose vectors must not depend on how texts are batched."""

import numpy as np

from palmette.score.sentences import SentenceEmbedder
from palmette.zoo.load import load_embedder


def test_vectors_are_those_of_each_text_alone_in_the_order_given() -> None:
    model = load_embedder("minilm")
    texts = [
        "one apple",
        "2 + 2 = 4",
        "word " * 500,
        "x",
        "A longer sentence about the sum of two numbers.",
        "word " * 90,
    ]
    found = np.asarray(SentenceEmbedder(model, "minilm", batch_rows=4).embed(texts))
    alone = np.stack([model.encode(text, convert_to_numpy=True, show_progress_bar=False) for text in texts])
    assert found.shape == alone.shape
    assert np.abs(found - alone).max() < 1e-5
    assert len(SentenceEmbedder(model, "minilm", batch_rows=4).embed([])) == 0  # type: ignore[arg-type]
