"""A backend without a model: a function gives its steps. For tests and documentation."""

from collections.abc import Callable, Sequence

from palmette.backends.backend import Expansion, Message, Step

Script = Callable[[Expansion, str], str]
"""Takes an expansion and the text of its prefix, prompt included; returns the next step, which ends in `$` if it is the
last step of the solution."""


class ScriptedBackend:
    """Returns the steps of its script, one token per character, each with log-probability 0 at temperature 1."""

    kv_bytes_per_token = 1
    context_tokens: int | None = None

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls = 0
        self.released: list[tuple[str, int]] = []

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the characters of the last message as code points."""
        return tuple(ord(character) for character in messages[-1]["content"])

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Call the script for each expansion in turn; cut steps that are longer than `max_tokens`."""
        self.calls += 1
        return [self._step(expansion) for expansion in expansions]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Record the released nodes in `released`, for tests."""
        self.released += [(question, node) for node in nodes]

    def _step(self, expansion: Expansion) -> Step:
        text = self._script(expansion, "".join(chr(token) for token in expansion.prefix))
        is_end = text.endswith("$")
        tokens = tuple(ord(character) for character in text)
        if len(tokens) > expansion.max_tokens:
            tokens = tokens[: expansion.max_tokens]
            return Step(tokens, "".join(map(chr, tokens)), (0.0,) * len(tokens), "length", 1.0)
        return Step(tokens, text.removesuffix("$"), (0.0,) * len(tokens), "end" if is_end else "step", 1.0)
