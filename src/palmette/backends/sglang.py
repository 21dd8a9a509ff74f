"""Writes steps on SGLang servers, by token ids over their own HTTP."""

from typing import Any

from pydantic import BaseModel

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.client import Client
from palmette.backends.servers.dialect import (
    SHORT_SEEDS,
    TEST_TEXT,
    Request,
    Served,
    ServerMetrics,
    TokenId,
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


class _Meta(BaseModel):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_token_logprobs: list[_Entry] = []
    input_token_logprobs: list[_Entry] = []


class _Generated(BaseModel):
    output_ids: list[TokenId] = []
    meta_info: _Meta


class SglangDialect:
    """SGLang's requests. Log-probabilities of written tokens are those at the sampling temperature, before cuts.

    At temperature 0 they are those at 1.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
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
        self._policy.name_on(client, {limits.served_model_name or info.model_path: info.model_path})
        read_text = {"max_new_tokens": 0, "temperature": 0.0}
        asked = {"text": TEST_TEXT, "sampling_params": read_text, "return_logprob": True, "logprob_start_len": 0}
        answer = read(_Generated, await client.post("/generate", asked), client, "/generate")
        tokens = [token for _, token, _ in answer.meta_info.input_token_logprobs]
        self._policy.check_tokens(client, tokens, special=True)
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
        answer = read(_Generated, await client.post("/generate", asked), client, "/generate")
        meta = answer.meta_info
        looked_up, cached = self._prefixes.get(client.address, (0, 0))
        self._prefixes[client.address] = looked_up + meta.prompt_tokens, cached + meta.cached_tokens
        logprobs = [logprob for logprob, _, _ in meta.output_token_logprobs if logprob is not None]
        return Written(answer.output_ids, logprobs)

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
