"""The backend contract: generates the next step of each token prefix."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from palmette.errors import ConfigError
from palmette.tasks.task import Message

Finish = Literal["step", "end", "length"]
__all__ = [
    "Backend",
    "Expands",
    "Expansion",
    "Finish",
    "Interruptible",
    "Message",
    "OnDevice",
    "StartsSteps",
    "Step",
    "TakesSampling",
    "TakesWeights",
    "TellsFailures",
    "TellsKv",
    "TellsNotices",
    "TellsTokens",
    "Tokenizes",
    "check_length",
]


@dataclass(frozen=True)
class Expansion:
    """A request for one step: the child of node `parent` in the tree of a question.

    `prefix` holds all tokens from the prompt's first to the parent's last, and `seed` determines the sampled tokens.
    `node` is the id of the new child, None if it will never be a parent. The step ends with the text `step_end` or
    after `max_tokens`, the solution with the model's end token or the text `stop`. `temperature` and `top_p` are those
    of the policy's settings where they are None.
    """

    question: str
    parent: int
    prefix: tuple[int, ...]
    seed: int
    max_tokens: int
    node: int | None = None
    step_end: str = "\n"
    stop: str | None = None
    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class Step:
    """A generated step. `tokens` include the delimiter or end token; `text` includes the delimiter, not the end token.

    The texts of the steps on a path, joined, are the text of their tokens: a character that the next step completes is
    in the text of that step.

    `finish` is what ended it: "step" for `step_end`, "end" for the end of the solution, "length" for `max_tokens`.
    `logprobs` has one log-probability for each token, of the model's distribution at `temperature` before top-k, top-p
    and min-p. `cached_tokens` of the prefix were in the KV cache when the step was started, None where nobody tells.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: Finish
    temperature: float = 1.0
    cached_tokens: int | None = field(default=None, compare=False)


def check_length(expansion: Expansion, context_tokens: int | None) -> None:
    """Raise ConfigError if a prefix and its step may be longer than the policy's context."""
    needed = len(expansion.prefix) + expansion.max_tokens
    if context_tokens is not None and needed > context_tokens:
        raise ConfigError(
            f"question {expansion.question} may need {needed} tokens, the policy takes {context_tokens}: "
            f"lower search.total_tokens by {needed - context_tokens} or more"
        )


class Backend(Protocol):
    """What every backend has. It generates steps as `StartsSteps` or, in one blocking call, as `Expands`.

    On a CPU in float32 an expansion gives the same step in every batch. Abilities that only some backends have are
    protocols of their own, below.
    """

    kv_bytes_per_token: int
    """Bytes of one token in this policy's KV cache."""

    context_tokens: int | None
    """The most tokens that a prefix and its step may have together, None without a limit."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a prompt, rendered by the model's chat template if it has one."""

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Free the KV of these nodes; ancestors keep theirs. Safe to call twice, and for a node never generated.

        A step that was started for one of these nodes and is not done yet is given up.
        """


class StartsSteps(Backend, Protocol):
    """A backend that generates many steps at once and hands over each one when it is done, whatever the others do."""

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Take these expansions, besides those that are in flight already; does not wait for a step."""

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Work until at least one step that was started is done; return all that are done, in any order.

        Every step is returned once. The list is empty only if nothing is in flight.
        """


class Expands(Backend, Protocol):
    """A backend that generates steps in one blocking call; `Blocking` makes it a `StartsSteps`."""

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Generate one step for each expansion; return them in the same order when all are done."""


@runtime_checkable
class TakesSampling(Protocol):
    """A backend that samples a step with its expansion's own `temperature` and `top_p`."""

    takes_sampling: Literal[True]


@runtime_checkable
class TakesWeights(Protocol):
    """A backend or a scorer whose weights can be replaced while it is in use; KV of the old weights is dropped."""

    @property
    def weight_version(self) -> int:
        """The version of the weights used last. It increases when changed weights are noticed."""

    def use_adapter(self, folder: str | None) -> None:
        """Use the PEFT adapter in this folder from the next call on, None for no adapter."""

    def update_weights(self, source: Mapping[str, Any] | str | Path) -> None:
        """Use these weights from the next call on: tensors by name, or a folder of safetensors."""


@runtime_checkable
class TellsTokens(Protocol):
    """A backend that reports the number of generated tokens while it generates them."""

    on_tokens: "Callable[[int], None] | None"
    """Called with the number of tokens generated since the last call; None for no call."""


@runtime_checkable
class TellsFailures(Protocol):
    """A backend whose `finished` fails at one step and goes on with the others when it is called again."""

    failed_question: str | None
    """The question of the step that `finished` has failed at last, None if it has not."""


@runtime_checkable
class TellsKv(Protocol):
    """A backend that knows how much of its KV cache is in use."""

    @property
    def kv_tokens_held(self) -> int:
        """KV tokens that the cache holds now; none when every node is released."""


@runtime_checkable
class TellsNotices(Protocol):
    """A backend or a scorer that has something to tell before a search: what it cannot do, or does differently."""

    notices: tuple[str, ...]
    """One line each."""


@runtime_checkable
class Interruptible(Protocol):
    """A backend whose `finished` can be made to return before a step is done, so that others can be started."""

    def interrupt(self) -> None:
        """Have a `finished` that waits in another thread, or else the next one, return soon, perhaps with no step."""


@runtime_checkable
class Tokenizes(Protocol):
    """A backend that has the policy's tokenizer: reads a prompt without a chat template, and spells tokens."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt as it is; no text in it becomes a control token."""

    def spell(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token; a part of a character is U+FFFD."""


@runtime_checkable
class OnDevice(Protocol):
    """A backend or a scorer whose model is on one device of this machine."""

    @property
    def device(self) -> str:
        """The device as torch writes it: "cpu", "cuda:0"."""
