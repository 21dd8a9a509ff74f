"""Asks SGLang servers for the scores of rows: two tokens, prompt log-probabilities, or the outputs of a head."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from palmette.backends.servers.client import Client, ServerError
from palmette.backends.servers.dialect import TEST_TEXT, TokenId, read
from palmette.backends.servers.identity import served_models
from palmette.backends.servers.served_model import ServedModel
from palmette.errors import ConfigError
from palmette.score.rows.row import Row
from palmette.score.served.reading import Finite, Head, Reading, TwoTokens, check_count, head_value, mean_logprob

_GENERATE, _CLASSIFY = "/generate", "/classify"

_Entry = tuple[Finite | None, TokenId, Any]
"""A log-probability, its token, its text."""


class _Info(BaseModel):
    model_path: str
    is_generation: bool = True


class _Limits(BaseModel):
    context_length: int | None = None
    max_req_input_len: int | None = None


class _Tokens(BaseModel):
    tokens: list[int]


class _Meta(BaseModel):
    input_token_logprobs: list[_Entry] = []
    output_token_ids_logprobs: list[list[_Entry] | None] = []


class _Generated(BaseModel):
    meta_info: _Meta


class _AllGenerated(BaseModel):
    rows: list[_Generated]


class _Embedded(BaseModel):
    embedding: list[Finite]


class _AllEmbedded(BaseModel):
    rows: list[_Embedded]


class SglangReward:
    """SGLang's requests; see `RewardDialect`. No token is written."""

    notices: tuple[str, ...] = ()

    def __init__(self, model: ServedModel, reading: Reading) -> None:
        self._model = model
        self._reading = reading

    async def meet(self, client: Client) -> int | None:
        """Check what the server was started for, the model and its tokenizer; see `RewardDialect`.

        A server of embeddings must never be asked to generate, not even no token: that ends it.
        """
        info = read(_Info, await client.get("/model_info"), client, "/model_info")
        limits = read(_Limits, await client.get("/server_info"), client, "/server_info")
        self._model.name_on(client, await served_models("sglang", client))
        if info.is_generation and isinstance(self._reading, Head):
            raise ConfigError(
                f"{client.address} serves {info.model_path} as a language model, and the outputs of its head should be "
                f"read: start it with --is-embedding"
            )
        if not info.is_generation and not isinstance(self._reading, Head):
            raise ConfigError(
                f"{client.address} serves {info.model_path} as an embedding model, and log-probabilities should be "
                f"read: start it without --is-embedding"
            )
        asked = {"prompt": TEST_TEXT, "add_special_tokens": False}
        tokens = read(_Tokens, await client.post("/tokenize", asked), client, "/tokenize").tokens
        self._model.check_tokens(client, tokens, special=False)
        return limits.context_length or limits.max_req_input_len

    async def values(self, client: Client, rows: Sequence[Row]) -> list[float]:
        """Return one number for each row; see `RewardDialect`."""
        reading = self._reading
        if isinstance(reading, Head):
            answer = await client.post(_CLASSIFY, {"input_ids": [list(row.tokens) for row in rows]})
            embedded = read(_AllEmbedded, {"rows": answer}, client, _CLASSIFY).rows
            check_count(client, _CLASSIFY, len(embedded), rows)
            return [head_value(client, _CLASSIFY, reading, each.embedding) for each in embedded]
        if isinstance(reading, TwoTokens):
            starts = [len(row.tokens) - 1 for row in rows]
            metas = await self._read(client, rows, starts, token_ids_logprob=[reading.good, reading.bad])
            found = [_two_tokens(meta, reading) for meta in metas]
        else:
            starts = [len(row.tokens) - row.step_tokens - 1 for row in rows]
            metas = await self._read(client, rows, starts)
            found = [_likelihood(row, meta) for row, meta in zip(rows, metas, strict=True)]
        values = [value for value in found if value is not None]
        if len(values) != len(rows):
            raise ServerError(f"{client.address} answered {_GENERATE} without the log-probabilities asked for")
        return values

    async def _read(self, client: Client, rows: Sequence[Row], starts: Sequence[int], **asked: Any) -> list[_Meta]:
        """Have the rows read. Log-probabilities are those of the tokens after `starts`: caches serve what is before."""
        body = {
            "input_ids": [list(row.tokens) for row in rows],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": [*starts],
            **asked,
        }
        answer = await client.post(_GENERATE, body)
        generated = read(_AllGenerated, {"rows": answer}, client, _GENERATE).rows
        check_count(client, _GENERATE, len(generated), rows)
        return [each.meta_info for each in generated]


def _two_tokens(meta: _Meta, reading: TwoTokens) -> float | None:
    first = (meta.output_token_ids_logprobs[0] if meta.output_token_ids_logprobs else None) or []
    found = {token: logprob for logprob, token, _ in first}
    good, bad = found.get(reading.good), found.get(reading.bad)
    return None if good is None or bad is None else good - bad


def _likelihood(row: Row, meta: _Meta) -> float | None:
    """Return the mean log-probability of the last step's tokens, None where another token or none is told."""
    entries = meta.input_token_logprobs[-row.step_tokens :]
    logprobs = [
        logprob
        for (logprob, token, _), asked in zip(entries, row.tokens[-row.step_tokens :], strict=False)
        if logprob is not None and token == asked
    ]
    return mean_logprob(row, logprobs) if len(logprobs) == row.step_tokens else None
