"""Writes steps on vLLM servers, by token ids over their OpenAI-compatible HTTP."""

import re
from typing import Any

from pydantic import BaseModel, Field

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.client import Client, RefusedError, ServerError
from palmette.backends.servers.dialect import TEST_TEXT, Request, Served, ServerMetrics, TokenId, Weights, Written, read
from palmette.backends.servers.identity import vllm_kv_tokens
from palmette.backends.servers.policy import Policy, serve
from palmette.errors import ConfigError
from palmette.settings import PolicySettings


class _Card(BaseModel):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[_Card]


class _Tokens(BaseModel):
    tokens: list[int]


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Choice(BaseModel):
    token_ids: list[TokenId]
    logprobs: _Logprobs


class _Details(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens_details: _Details | None = None
    """There with `--enable-prompt-tokens-details`."""


class _Completion(BaseModel):
    model: str | None = None
    usage: _Usage | None = None
    choices: list[_Choice] = Field(min_length=1, max_length=1)


class VllmDialect:
    """vLLM's requests. Each asks for one sample: sample i of n would have the seed of the first plus i.

    Log-probabilities are those before temperature and cuts: vLLM's default, `--logprobs-mode raw_logprobs`. Those of a
    server with `processed_logprobs` come after both: they are taken where nothing is cut.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.weights: Weights | None = None
        self._names: dict[str, str] = {}
        """What each server calls the policy."""
        self._processed: bool | None = None
        """Whether the servers' log-probabilities are those after temperature and cuts, None before one was met."""

    def logprob_temperature(self, temperature: float | None) -> float:
        """Return 1, or the request's own where servers process log-probabilities first; see `Dialect`."""
        own = self._policy.settings.temperature if temperature is None else temperature
        return own or 1.0 if self._processed else 1.0  # Greedy decoding divides nothing.

    async def meet(self, client: Client) -> Served:
        """Check the model and its tokenizer; see `Dialect`."""
        cards = read(_Models, await client.get("/v1/models"), client, "/v1/models").data
        self._names[client.address] = name = self._policy.model.name_on(
            client, {card.id: card.root or card.id for card in cards}
        )
        asked = {"model": name, "prompt": TEST_TEXT, "add_special_tokens": False}
        tokens = read(_Tokens, await client.post("/tokenize", asked), client, "/tokenize").tokens
        self._policy.model.check_tokens(client, tokens, special=False)
        await self._check_logprobs(client, tokens)
        if self.weights is not None:
            await self.load(client, self.weights)
        return Served(next(card.max_model_len for card in cards if card.id == name))

    async def _check_logprobs(self, client: Client, prompt: list[int]) -> None:
        """Find out what log-probabilities mean on a server. Raises ConfigError where they are no use.

        Of one token that is left by top-k the logarithm is 0 after cuts, and not before them.
        """
        asked = {
            "model": self._names[client.address], "prompt": prompt, "max_tokens": 1, "n": 1, "seed": 1, "logprobs": 0,
            "temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "stop": [], "stop_token_ids": [],
            "return_token_ids": True,
        }  # fmt: skip
        answer = await client.post("/v1/completions", asked)
        [logprob] = read(_Completion, answer, client, "/v1/completions").choices[0].logprobs.token_logprobs
        settings = self._policy.settings
        mode = "processed_logprobs" if logprob == 0 else "raw_logprobs"
        if logprob > 0:
            raise ConfigError(f"{client.address} gives logits as log-probabilities: start it without --logprobs-mode")
        if logprob == 0 and (settings.top_k or settings.top_p < 1 or settings.min_p > 0):
            raise ConfigError(
                f"{client.address} was started with --logprobs-mode {mode}, and gives log-probabilities after top-k, "
                f"top-p and min-p: start it without, or leave policy.top_k, policy.top_p and policy.min_p out"
            )
        if self._processed not in (None, logprob == 0):
            raise ConfigError(f"{client.address} has another --logprobs-mode ({mode}) than other servers: use one")
        self._processed = logprob == 0

    async def write(self, client: Client, request: Request) -> Written:
        """Ask for one sample; see `Dialect`."""
        asked = {
            **self._policy.sampling(request),
            "prompt": [*request.prompt],
            "max_tokens": request.max_tokens,
            "n": 1,
            "seed": request.seed,
            "top_k": self._policy.settings.top_k or 0,
            "logprobs": 0,
            "return_token_ids": True,
        }
        answer = read(_Completion, await self._completed(client, asked), client, "/v1/completions")
        choice = answer.choices[0]
        version = answer.model if self.weights is not None else None
        details = None if answer.usage is None else answer.usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return Written(choice.token_ids, choice.logprobs.token_logprobs, version, cached)

    async def _completed(self, client: Client, asked: dict[str, Any]) -> Any:
        """Return the answer of the policy, or of its adapter; one that a server has lost is loaded again.

        Of several requests that miss it the first one loads it; the others ask again all the same.
        """
        weights = self.weights
        if weights is None:
            return await client.post("/v1/completions", {"model": self._names[client.address], **asked})
        try:
            return await client.post("/v1/completions", {"model": weights.name, **asked})
        except RefusedError as error:
            if error.status != 404:
                raise
        await self.load(client, weights)
        return await client.post("/v1/completions", {"model": weights.name, **asked})

    async def load(self, client: Client, weights: Weights) -> None:
        """Have a server load an adapter under the name of the weights; see `TakesVersions`."""
        if weights.name in await self.versions(client):
            return
        try:
            await client.tell("/v1/load_lora_adapter", {"lora_name": weights.name, "lora_path": weights.folder})
        except RefusedError as error:
            if weights.name in await self.versions(client):
                return  # Another request has loaded it meanwhile.
            raise ConfigError(
                f"{error}. Training needs a server that was started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, "
                f"--enable-lora and a --max-lora-rank of train.lora_rank or more, and that can read {weights.folder}"
            ) from error
        if weights.name not in await self.versions(client):
            raise ServerError(f"{client.address} was given the adapter {weights.name}, and does not list it")

    async def versions(self, client: Client) -> set[str]:
        """Return the names of all that a server has; see `TakesVersions`."""
        return {card.id for card in read(_Models, await client.get("/v1/models"), client, "/v1/models").data}

    async def unload(self, client: Client, name: str) -> None:
        """Have a server drop an adapter; see `TakesVersions`."""
        await client.tell("/v1/unload_lora_adapter", {"lora_name": name})

    async def metrics(self, client: Client) -> ServerMetrics:
        """Read the page for Prometheus; see `Dialect`."""
        page = await client.get_text("/metrics")
        return ServerMetrics(
            client.address,
            kv_tokens=vllm_kv_tokens(page),
            kv_share_used=_sum(page, "vllm:kv_cache_usage_perc"),
            prefix_tokens=_whole(_sum(page, "vllm:prefix_cache_queries_total")),
            prefix_hits=_whole(_sum(page, "vllm:prefix_cache_hits_total")),
            preemptions=_whole(_sum(page, "vllm:num_preemptions_total")),
        )


def _sum(page: str, name: str) -> float | None:
    """Return the sum of a metric over its labels, None if the page has none of this name."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? ([0-9.eE+-]+)$", page, re.MULTILINE)
    try:
        return sum(map(float, found)) if found else None
    except ValueError:
        return None


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def load(settings: PolicySettings, kv_bytes_per_token: int) -> ServedBackend:
    """Return the policy on the vLLM servers at `policy.address`."""
    return serve(settings, VllmDialect, kv_bytes_per_token)


plugin = load
