"""The backend contract: who turns prefixes into next steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from palmette.tasks.task import Message

Finish = Literal["step", "end", "length"]
__all__ = ["Backend", "Expansion", "Finish", "Message", "OnDevice", "Step", "TakesWeights", "TellsTokens"]


@dataclass(frozen=True)
class Expansion:
    """One child to grow: `prefix` is every token above it, `seed` its own stream of random numbers.

    `node` is the id that the child will have, None where nothing will be grown from it. The step ends with the text
    `step_end`, the solution with the model's end token or the text `stop`.
    """

    question: str
    parent: int
    prefix: tuple[int, ...]
    seed: int
    max_tokens: int
    node: int | None = None
    step_end: str = "\n"
    stop: str | None = None


@dataclass(frozen=True)
class Step:
    """What grew. `tokens` include the delimiter or the end token; `text` includes the delimiter, not the end token.

    Log-probabilities are those of the model's distribution at `temperature`, before any cut: one for each token.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: Finish
    temperature: float = 1.0


class Backend(Protocol):
    """Grows steps: what a search needs. The same expansion gives the same step whatever else is in the call.

    That holds on a CPU in float32. What only some backends can do are contracts of their own, asked for by isinstance.
    """

    kv_bytes_per_token: int
    """What one token costs in this policy's KV cache."""

    context_tokens: int | None
    """The most tokens a prefix with its step may have, None without a limit."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens, rendered by the model's chat template where it has one."""

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow one step for each expansion, in order. Blocks until all are done."""

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Forget what is kept for these nodes; ancestors keep theirs. Safe to call twice."""


@runtime_checkable
class TakesWeights(Protocol):
    """A backend or a scorer whose model can be changed while it is in use; what it kept of the old one is dropped."""

    @property
    def weight_version(self) -> int:
        """The number of the weights that were used last. It grows whenever the model is seen changed."""

    def use_adapter(self, folder: str | None) -> None:
        """Let what comes next come from the model with the adapter in this folder, None for no adapter."""

    def update_weights(self, source: Mapping[str, Any] | str | Path) -> None:
        """Let what comes next come from these weights: tensors by name, or a folder with safetensors."""


@runtime_checkable
class TellsTokens(Protocol):
    """A backend that tells how many tokens it writes while a call of `expand` is still going on."""

    on_tokens: "Callable[[int], None] | None"
    """Called with the number of tokens written since the last call; None for nobody."""


@runtime_checkable
class OnDevice(Protocol):
    """A backend or a scorer whose model lies on one device of this machine."""

    @property
    def device(self) -> str:
        """The device as torch writes it: "cpu", "cuda:0"."""
