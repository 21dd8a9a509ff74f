"""A backend whose waves are cut into pieces that fit, by whoever watches memory."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from palmette.backends.backend import Backend, Expansion, Message, Step
from palmette.memory.guard import RunPieces


class GuardedBackend:
    """Serves the contract by another backend. Steps belong to their seeds, so a wave in pieces grows the same ones."""

    def __init__(
        self, backend: Backend, run_pieces: RunPieces, phase: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._backend = backend
        self._run_pieces = run_pieces
        self._phase = phase
        self.kv_bytes_per_token = backend.kv_bytes_per_token
        self.context_tokens = backend.context_tokens

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self._backend.calls

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens; see the contract."""
        return self._backend.encode(messages)

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow one step for each expansion; see the contract."""
        with self._phase():
            return [step for steps in self._run_pieces(expansions, self._backend.expand) for step in steps]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Forget what is kept for these nodes; see the contract."""
        self._backend.release(question, nodes)
