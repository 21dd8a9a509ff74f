"""A policy without a model for tests of servers: a tokenizer of a few pieces, and tokens drawn by hash."""

import hashlib
from collections.abc import Sequence
from typing import Any

from palmette.backends.backend import Expansion, Message, Step

PIECES = ("<end>", *"0123456789+-=?xyz ", "\n", "12", "xy", ".\n", "+1")
END, BREAK, DOT_BREAK = 0, PIECES.index("\n"), PIECES.index(".\n")
_OTHER = 1000
"""What is no piece is the code point of a character, counted from here."""


class FakeTokenizer:
    """Takes the longest piece at every place of a text."""

    chat_template = None
    eos_token_id = END
    bos_token_id = unk_token_id = None
    added_tokens_decoder = {END: PIECES[END]}  # noqa: RUF012
    all_special_ids = (END,)
    all_special_tokens = (PIECES[END],)

    def __len__(self) -> int:
        return len(PIECES)

    def encode(self, text: str, **_: Any) -> list[int]:
        tokens = []
        while text:
            piece = max((piece for piece in PIECES if text.startswith(piece)), key=len, default=None)
            tokens.append(PIECES.index(piece) if piece else _OTHER + ord(text[0]))
            text = text[len(piece or "x") :]
        return tokens

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(chr(token - _OTHER) if token >= _OTHER else PIECES[token] for token in tokens if token != END)


class FakeModel:
    """Draws each token by a hash of the seed and of all tokens before it; `first` are drawn before anything else."""

    def __init__(self, first: Sequence[int] = (), tokenizer: Any = None) -> None:
        self._first = first
        self._tokenizer = tokenizer or FakeTokenizer()

    def draw(self, seed: int, prompt: Sequence[int], written: Sequence[int]) -> tuple[int, float]:
        """Return a token and its log-probability. The first of an answer is no line break."""
        if len(written) < len(self._first):
            return self._first[len(written)], -0.5
        told = f"{seed % 2**31} {[*prompt, *written]}".encode()
        draw = int.from_bytes(hashlib.blake2b(told, digest_size=4).digest(), "big")
        if not written:
            return 1 + draw % 14, -1.0 - draw % 7
        chosen = (END, END, END, BREAK, DOT_BREAK, *range(1, len(PIECES)))[draw % (4 + len(PIECES))]
        return chosen, -(draw % 100) / 50

    def answer(
        self, prompt: Sequence[int], seed: int, most: int, stops: Sequence[str], ends: Sequence[int]
    ) -> tuple[list[int], list[float], int | str | None]:
        """Write as a server does: return tokens, log-probabilities and what stopped it, None for the length."""
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < most:
            token, logprob = self.draw(seed, prompt, tokens)
            tokens.append(token)
            logprobs.append(logprob)
            if token in ends:
                return tokens, logprobs, token
            text = self._tokenizer.decode(tokens)
            met = next((stop for stop in stops if stop in text), None)
            if met is not None:
                return tokens, logprobs, met
        return tokens, logprobs, None


class InProcess:
    """The fake model without a server: the backend that searches over servers are compared with."""

    kv_bytes_per_token = 1
    context_tokens: int | None = None

    def __init__(self, temperature: float = 1.0) -> None:
        self._temperature = temperature
        self._model = FakeModel()
        self._tokenizer = FakeTokenizer()
        self.calls = 0

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(messages[-1]["content"] + "\n"))

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        return [self._step(expansion) for expansion in expansions]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        pass

    def _step(self, asked: Expansion) -> Step:
        tokens: list[int] = []
        logprobs: list[float] = []
        finish: Any = "length"
        while len(tokens) < asked.max_tokens and finish == "length":
            token, logprob = self._model.draw(asked.seed, asked.prefix, tokens)
            tokens.append(token)
            logprobs.append(logprob)
            finish = "end" if token == END else "step" if "\n" in PIECES[token] else "length"
        return Step(tuple(tokens), self._tokenizer.decode(tokens), tuple(logprobs), finish, self._temperature)
