"""Writes steps on any other OpenAI-compatible server that takes token ids as a prompt, with what it offers."""

from typing import Any

from pydantic import BaseModel, Field

from palmette.backends.chat import encode_text
from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.client import Client, ServerError
from palmette.backends.servers.dialect import SHORT_SEEDS, Request, Served, ServerMetrics, Written, read
from palmette.backends.servers.policy import Policy, serve
from palmette.errors import BackendError, ConfigError
from palmette.settings import PolicySettings

_PATH = "/v1/completions"
_MOST_TOKENS = 64
"""How many tokens one request asks for. What comes after the end of a step is thrown away."""


class _Card(BaseModel):
    id: str
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[_Card]


class _Logprobs(BaseModel):
    token_logprobs: list[float | None] | None = None


class _Choice(BaseModel):
    text: str
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Usage(BaseModel):
    prompt_tokens: int


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: _Usage | None = None


class OpenaiDialect:
    """Requests by the published OpenAI interface alone.

    Its answers do not say which of several stop strings was met, nor the ids of tokens. So no stop string is sent, the
    text is tokenized here, and every token of an answer gets the mean of the answer's log-probabilities.
    """

    def __init__(self, policy: Policy) -> None:
        settings = policy.settings
        if settings.top_k is not None or settings.min_p > 0:
            raise ConfigError(
                "policy.top_k and policy.min_p are no part of the OpenAI interface: leave them out, or use the backend "
                "vllm or sglang"
            )
        self._policy = policy
        self._names: dict[str, str] = {}

    def logprob_temperature(self, temperature: float | None) -> float:
        """Return 1: log-probabilities are those before temperature; see `Dialect`."""
        return 1.0

    async def meet(self, client: Client) -> Served:
        """Check the model, and that a prompt of token ids is read as such; see `Dialect`."""
        cards = read(_Models, await client.get("/v1/models"), client, "/v1/models").data
        self._names[client.address] = name = self._policy.model.name_on(client, {card.id: card.id for card in cards})
        prompt = self._policy.model.test_tokens(special=False)
        try:
            answer = await self._ask(client, Request(prompt, seed=1, max_tokens=1, stops=()))
        except ServerError:
            raise
        except BackendError as error:
            raise ConfigError(f"{error}. A search needs a server that takes token ids as a prompt") from error
        counted = answer.usage.prompt_tokens if answer.usage else None
        if counted not in (len(prompt), len(prompt) + 1):  # Some put a token before every prompt.
            raise ConfigError(
                f"{client.address} counted {counted} tokens in a prompt of {len(prompt)} token ids: it does not take "
                f"them as they are, or has another tokenizer. A search needs that"
            )
        notices = [f"{client.address} returns no token ids: the text of its steps is tokenized here"]
        if _logprobs(answer.choices[0]):
            notices.append(f"{client.address}: the log-probabilities of an answer's tokens are recorded as their mean")
        else:
            notices.append(f"{client.address} returns no log-probabilities: they are recorded as 0")
        return Served(next(card.max_model_len for card in cards if card.id == name), tuple(notices))

    async def write(self, client: Client, request: Request) -> Written:
        """Ask for one sample; see `Dialect`. An answer that stopped by itself stopped at an end token."""
        choice = (await self._ask(client, request)).choices[0]
        tokens = encode_text(self._policy.tokenizer, choice.text)
        if choice.finish_reason == "stop":
            tokens.append(min(self._policy.end_tokens))
        tokens = tokens[: request.max_tokens]  # As tokenized here there may be more of them.
        total = sum(_logprobs(choice))
        return Written(tokens, [total / len(tokens)] * len(tokens) if tokens else [])

    async def metrics(self, client: Client) -> ServerMetrics:
        """Return nothing but the address: there is no common way to ask; see `Dialect`."""
        return ServerMetrics(client.address)

    async def _ask(self, client: Client, request: Request) -> _Completion:
        asked: dict[str, Any] = {
            "model": self._names[client.address],
            "prompt": [*request.prompt],
            "max_tokens": min(request.max_tokens, _MOST_TOKENS),
            "n": 1,
            "seed": request.seed % SHORT_SEEDS,
            **self._policy.drawn(request),
            "logprobs": 1,
        }
        return read(_Completion, await client.post(_PATH, asked), client, _PATH)


def _logprobs(choice: _Choice) -> list[float]:
    found = choice.logprobs.token_logprobs if choice.logprobs else None
    return [logprob for logprob in found or () if logprob is not None]


def load(settings: PolicySettings, kv_bytes_per_token: int) -> ServedBackend:
    """Return the policy on the OpenAI-compatible servers at `policy.address`."""
    return serve(settings, OpenaiDialect, kv_bytes_per_token)


plugin = load
