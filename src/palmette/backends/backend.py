"""The backend contract: who turns prefixes into next steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from palmette.tasks.task import Message

Finish = Literal["step", "end", "length"]
__all__ = ["Backend", "Expansion", "Finish", "Message", "Step"]


@dataclass(frozen=True)
class Expansion:
    """One child to grow: `prefix` is every token above it, `seed` its own stream of random numbers.

    `node` is the id that the child will have, None where nothing will be grown from it.
    """

    question: str
    parent: int
    prefix: tuple[int, ...]
    seed: int
    max_tokens: int
    node: int | None = None


@dataclass(frozen=True)
class Step:
    """What grew. `tokens` include the delimiter or the end token; `text` includes the delimiter, not the end token.

    Log-probabilities are those of the model's distribution at `temperature`, before any cut: one for each token.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: Finish
    temperature: float


class Backend(Protocol):
    """Grows steps. The same expansion gives the same step whatever else is in the call (CPU, float32)."""

    kv_bytes_per_token: int
    """What one token costs in this policy's KV cache."""

    context_tokens: int | None
    """The most tokens a prefix with its step may have, None without a limit."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""

    @property
    def weight_version(self) -> int:
        """The number of the weights that wrote the last steps. It grows whenever the policy is seen changed."""

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens, rendered by the model's chat template where it has one."""

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow one step for each expansion, in order. Blocks until all are done."""

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Forget what is kept for these nodes; ancestors keep theirs. Safe to call twice."""

    def room_tokens(self) -> int | None:
        """Return how many KV tokens are still free, None where the backend sets no limit."""
