"""A backend that reads its steps from a script, for tests as for documentation."""

from collections.abc import Callable, Sequence

from palmette.backends.backend import Expansion, Message, Step

Script = Callable[[Expansion, str], str]
"""Takes an expansion with the text above it (prompt included); returns the next step. `$` at its end finishes it."""


class ScriptedBackend:
    """Writes what its script says, one token for each character; each is certain, at temperature 1."""

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
        """Ask the script for each expansion in turn."""
        self.calls += 1
        return [self._step(expansion) for expansion in expansions]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Remember what was released, for a test to look at."""
        self.released += [(question, node) for node in nodes]

    def _step(self, expansion: Expansion) -> Step:
        written = self._script(expansion, "".join(chr(token) for token in expansion.prefix))
        ended = written.endswith("$")
        tokens = tuple(ord(character) for character in written)
        if len(tokens) > expansion.max_tokens:
            tokens = tokens[: expansion.max_tokens]
            return Step(tokens, "".join(map(chr, tokens)), (0.0,) * len(tokens), "length", 1.0)
        return Step(tokens, written.removesuffix("$"), (0.0,) * len(tokens), "end" if ended else "step", 1.0)
