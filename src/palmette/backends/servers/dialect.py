"""What one kind of server says differently from another: the contract of `vllm`, `sglang` and `openai`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError

from palmette.backends.servers.client import Client, ServerError
from palmette.units import one_line

TEST_TEXT = "Is 3·4115 = 12345?\n\n  Ja, größer: 漢字 \t{x}^2 + 1e-5"
"""What tokenizers disagree about if they disagree: digits, spaces, line breaks, accents, signs."""

SHORT_SEEDS = 2**31
"""Seeds are cut to what a 32-bit integer holds where a server may have no room for more."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class Request:
    """A request for at most `max_tokens` tokens after `prompt`. The server may stop after one of `stops`.

    `temperature` and `top_p` are those of the policy's settings where they are None.
    """

    prompt: Sequence[int]
    seed: int
    max_tokens: int
    stops: Sequence[str]
    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class Written:
    """What a server wrote: its tokens, with the one that made it stop, and a log-probability for each.

    `version` names the weights that it was written with, and `cached_tokens` of the prompt were in its cache; each None
    where the server does not tell.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    version: str | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Weights:
    """Weights that a policy in training has at present: a folder with an adapter, or with the whole model.

    Every change of them has a name of its own.
    """

    name: str
    folder: str
    is_adapter: bool


@dataclass(frozen=True)
class Served:
    """What a server says of itself. `context_tokens` is None where it names no limit; `notices` are for the user."""

    context_tokens: int | None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerMetrics:
    """How a server used its KV cache. None stands for what this kind of server does not publish.

    `prefix_tokens` of prompts were looked up in the prefix cache, `prefix_hits` of them found there: since the server
    started for vLLM, in this backend's own requests for SGLang.
    """

    address: str
    kv_tokens: int | None = None
    kv_share_used: float | None = None
    prefix_tokens: int | None = None
    prefix_hits: int | None = None
    preemptions: int | None = None


class Dialect(Protocol):
    """How a kind of server is asked."""

    def logprob_temperature(self, temperature: float | None) -> float:
        """Return the temperature of the log-probabilities of a request: `temperature` is the request's own."""

    async def meet(self, client: Client) -> Served:
        """Ask a server what it is. Raises ConfigError if it has another model or tokenizer than the policy's."""

    async def write(self, client: Client, request: Request) -> Written:
        """Have the server write. Raises BackendError if its answer breaks its own format."""

    async def metrics(self, client: Client) -> ServerMetrics:
        """Return what the server publishes of its KV cache."""


class TakesVersions(Dialect, Protocol):
    """A kind of server whose weights can be replaced while it runs.

    `weights` are those that it has to write with, None for the model that it was started with. A server that is met
    again, after it was restarted say, is given them again.
    """

    weights: Weights | None

    async def load(self, client: Client, weights: Weights) -> None:
        """Have a server load these weights unless it has them, and check that it lists them.

        Raises ConfigError if it was not started so that it can.
        """

    async def versions(self, client: Client) -> set[str]:
        """Return the names of all weights that a server has."""

    async def unload(self, client: Client, name: str) -> None:
        """Have a server drop weights that it has."""


Answer = TypeVar("Answer", bound=BaseModel)


def read(shape: type[Answer], answer: Any, client: Client, path: str) -> Answer:
    """Return an answer of this shape. Raises ServerError, with the first fault, for any other."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        told = ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
        raise ServerError(f"{client.address} answered {path} wrongly: {one_line(told, 200)}") from None
