"""A server for a real tokenizer that writes drawn tokens, and ends in the middle of a search."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.dialects import Dialect, Fault, Manner
from tests.fake_policy import FakeModel

_FIRST = 2
"""The first two tokens of the vocabulary are the padding and the beginning."""


class OfFolder:
    """The tokenizer of a folder, without transformers."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.size = self._tokenizer.get_vocab_size()

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class Drawn(FakeModel):
    """Draws from a vocabulary of any size."""

    def __init__(self, tokenizer: OfFolder) -> None:
        super().__init__(tokenizer=tokenizer)
        self._size = tokenizer.size

    def draw(self, seed: int, prompt: Sequence[int], written: Sequence[int]) -> tuple[int, float]:
        token, logprob = super().draw(seed, prompt, written)
        return _FIRST + token % (self._size - _FIRST), logprob


def serve(engine: str, port: int, model: str, last: int, died: Path) -> None:
    """Serve a folder's model; end as kill -9 does at the request to write with the number `last`, once."""

    def end(count: int) -> Fault | None:
        if count >= last and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    tokenizer = OfFolder(Path(model))
    manner = Manner(engine, model=model, tokenizer=tokenizer, fake=Drawn(tokenizer), fault=end)
    with Dialect(manner, port) as server:
        server.serve_forever(0.01)
