"""A backend with out-of-memory retry: splits a wave into pieces that fit in memory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from palmette.backends.backend import Backend, Expansion, Message, Step
from palmette.memory.guard import RunPieces
from palmette.own_parts import name_of


class GuardedBackend:
    """Wraps another backend. A step depends only on its prefix and seed, so a wave in pieces gives the same steps.

    `run_pieces` splits each wave (`Guard.run`); `phase` is entered around each `expand`, to measure memory.
    """

    def __init__(
        self, backend: Backend, run_pieces: RunPieces, phase: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._backend = backend
        self.part_name = name_of(backend)
        self._run_pieces = run_pieces
        self._phase = phase
        self.kv_bytes_per_token = backend.kv_bytes_per_token
        self.context_tokens = backend.context_tokens

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self._backend.calls

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a prompt; see `Backend`."""
        return self._backend.encode(messages)

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Generate one step for each expansion, in pieces; see `Backend`."""
        with self._phase():
            return [step for steps in self._run_pieces(expansions, self._backend.expand) for step in steps]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Free the KV of these nodes; see `Backend`."""
        self._backend.release(question, nodes)
