"""Writes steps on SGLang servers, by token ids over their own HTTP."""

from typing import Any

from pydantic import BaseModel

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.client import Client, RefusedError, ServerError
from palmette.backends.servers.dialect import (
    SHORT_SEEDS,
    TEST_TEXT,
    Request,
    Served,
    ServerMetrics,
    TokenId,
    Weights,
    Written,
    read,
)
from palmette.backends.servers.policy import Policy, serve
from palmette.errors import ConfigError
from palmette.settings import PolicySettings

_Entry = tuple[float | None, int, Any]
"""A log-probability, its token, its text."""


class _Info(BaseModel):
    model_path: str
    is_generation: bool = True
    weight_version: str | None = None


class _Limits(BaseModel):
    max_total_num_tokens: int | None = None
    context_length: int | None = None
    max_req_input_len: int | None = None
    served_model_name: str | None = None


class _Card(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Card]


class _Tokens(BaseModel):
    tokens: list[int]


class _Meta(BaseModel):
    weight_version: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_token_logprobs: list[_Entry] = []


class _Generated(BaseModel):
    output_ids: list[TokenId] = []
    meta_info: _Meta


class SglangDialect:
    """SGLang's requests. Log-probabilities of written tokens are those at the sampling temperature, before cuts.

    At temperature 0 they are those at 1.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.weights: Weights | None = None
        self._prefixes: dict[str, tuple[int, int]] = {}
        """Prompt tokens asked of each server, and how many of them it had cached."""

    def logprob_temperature(self, temperature: float | None) -> float:
        """Return the temperature of the request, 1 for 0; see `Dialect`."""
        return (self._policy.settings.temperature if temperature is None else temperature) or 1.0

    async def meet(self, client: Client) -> Served:
        """Check the model and its tokenizer; see `Dialect`."""
        info = read(_Info, await client.get("/model_info"), client, "/model_info")
        if not info.is_generation:  # To ask such a server to write ends it.
            raise ConfigError(f"{client.address} serves {info.model_path} as an embedding model: it writes no steps")
        limits = read(_Limits, await client.get("/server_info"), client, "/server_info")
        self._policy.model.name_on(client, {limits.served_model_name or info.model_path: info.model_path})
        asked = {"prompt": TEST_TEXT, "add_special_tokens": False}
        tokens = read(_Tokens, await client.post("/tokenize", asked), client, "/tokenize").tokens
        self._policy.model.check_tokens(client, tokens, special=False)
        if self.weights is not None:
            await self.load(client, self.weights)
        return Served(limits.context_length or limits.max_req_input_len)

    async def write(self, client: Client, request: Request) -> Written:
        """Ask for one sample; see `Dialect`."""
        sampling = {
            **self._policy.sampling(request),
            "max_new_tokens": request.max_tokens,
            "top_k": self._policy.settings.top_k or -1,
            "sampling_seed": request.seed % SHORT_SEEDS,
        }
        asked = {"input_ids": [*request.prompt], "sampling_params": sampling, "return_logprob": True}
        answer = read(_Generated, await self._generated(client, asked), client, "/generate")
        meta = answer.meta_info
        looked_up, cached = self._prefixes.get(client.address, (0, 0))
        self._prefixes[client.address] = looked_up + meta.prompt_tokens, cached + meta.cached_tokens
        logprobs = [logprob for logprob, _, _ in meta.output_token_logprobs if logprob is not None]
        is_whole = self.weights is not None and not self.weights.is_adapter
        return Written(answer.output_ids, logprobs, meta.weight_version if is_whole else None, meta.cached_tokens)

    async def _generated(self, client: Client, asked: dict[str, Any]) -> Any:
        """Return the answer of the policy, or of its adapter; one that a server has lost is loaded again."""
        weights = self.weights
        if weights is None or not weights.is_adapter:
            return await client.post("/generate", asked)
        asked = {**asked, "lora_path": weights.name}
        try:
            return await client.post("/generate", asked)
        except RefusedError:
            await self.load(client, weights)  # Where another request has done so meanwhile it is asked again at once.
            return await client.post("/generate", asked)

    async def load(self, client: Client, weights: Weights) -> None:
        """Have a server load an adapter, or the whole model from its folder; see `TakesVersions`."""
        if weights.name in await self.versions(client):
            return
        try:
            if weights.is_adapter:
                await client.tell("/load_lora_adapter", {"lora_name": weights.name, "lora_path": weights.folder})
            else:
                asked = {"model_path": weights.folder, "weight_version": weights.name}
                await client.tell("/update_weights_from_disk", asked)
        except RefusedError as error:
            if weights.name in await self.versions(client):
                return  # Another request has loaded it meanwhile.
            flags = "with --enable-lora and a --max-lora-rank of train.lora_rank or more, and " * weights.is_adapter
            raise ConfigError(
                f"{error}. Training needs a server that was started {flags}so that it can read {weights.folder}"
            ) from error
        if weights.name not in await self.versions(client):
            raise ServerError(f"{client.address} was given the weights {weights.name}, and does not list them")

    async def versions(self, client: Client) -> set[str]:
        """Return the names of adapters, and of the weights that a server has; see `TakesVersions`."""
        info = read(_Info, await client.get("/model_info"), client, "/model_info")
        cards = read(_Models, await client.get("/v1/models"), client, "/v1/models").data
        return {card.id for card in cards} | {info.weight_version or ""}

    async def unload(self, client: Client, name: str) -> None:
        """Have a server drop an adapter; see `TakesVersions`. Other weights have replaced each other."""
        if self.weights is None or self.weights.is_adapter:
            await client.tell("/unload_lora_adapter", {"lora_name": name})

    async def metrics(self, client: Client) -> ServerMetrics:
        """Read the size of the KV pool, and count what requests so far had cached; see `Dialect`."""
        limits = read(_Limits, await client.get("/server_info"), client, "/server_info")
        looked_up, cached = self._prefixes.get(client.address, (0, 0))
        kv_tokens = limits.max_total_num_tokens
        return ServerMetrics(client.address, kv_tokens=kv_tokens, prefix_tokens=looked_up, prefix_hits=cached)


def load(settings: PolicySettings, kv_bytes_per_token: int) -> ServedBackend:
    """Return the policy on the SGLang servers at `policy.address`."""
    return serve(settings, SglangDialect, kv_bytes_per_token)


plugin = load
