"""What a vLLM or SGLang server says of itself, whatever its model is for: what it serves, how much KV it has."""

import re

from pydantic import BaseModel

from palmette.backends.servers.client import Client
from palmette.backends.servers.dialect import read


class _Card(BaseModel):
    id: str
    root: str | None = None


class _Models(BaseModel):
    data: list[_Card]


class _Info(BaseModel):
    model_path: str


class _Limits(BaseModel):
    max_total_num_tokens: int | None = None
    served_model_name: str | None = None


async def served_models(engine: str, client: Client) -> dict[str, str]:
    """Return the model behind every name that a server has. Raises ServerError for an answer of another kind."""
    if engine == "vllm":
        cards = read(_Models, await client.get("/v1/models"), client, "/v1/models").data
        return {card.id: card.root or card.id for card in cards}
    path = read(_Info, await client.get("/model_info"), client, "/model_info").model_path
    limits = read(_Limits, await client.get("/server_info"), client, "/server_info")
    return {limits.served_model_name or path: path}


async def kv_tokens(engine: str, client: Client) -> int | None:
    """Return how many tokens a server's KV cache has, None where it does not tell."""
    if engine == "vllm":
        return vllm_kv_tokens(await client.get_text("/metrics"))
    return read(_Limits, await client.get("/server_info"), client, "/server_info").max_total_num_tokens


def vllm_kv_tokens(page: str) -> int | None:
    """Return the tokens of all blocks, which the labels of one of vLLM's metrics tell."""
    labels = next((line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    sizes = [re.search(rf'\b{name}="(\d{{1,12}})"', labels) for name in ("num_gpu_blocks", "block_size")]
    blocks, tokens = (None if size is None else int(size[1]) for size in sizes)
    return None if blocks is None or tokens is None else blocks * tokens
