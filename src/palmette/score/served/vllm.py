"""Asks vLLM servers for the scores of rows: two tokens, prompt log-probabilities, or the outputs of a head."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from palmette.backends.servers.client import Client, ServerError
from palmette.backends.servers.dialect import TEST_TEXT, TokenId, read
from palmette.backends.servers.identity import served_models
from palmette.backends.servers.served_model import ServedModel
from palmette.errors import BackendError
from palmette.score.rows.row import Row
from palmette.score.served.reading import Finite, Head, Reading, TwoTokens, check_count, head_value, mean_logprob

_COMPLETIONS, _POOLING = "/v1/completions", "/pooling"


class _Tokens(BaseModel):
    tokens: list[int]
    max_model_len: int | None = None


class _TopLogprobs(BaseModel):
    top_logprobs: list[dict[str, Finite] | None]


class _Logprob(BaseModel):
    logprob: Finite


class _Choice(BaseModel):
    index: int
    logprobs: _TopLogprobs | None = None
    prompt_logprobs: list[dict[TokenId, _Logprob] | None] | None = None


class _Completion(BaseModel):
    choices: list[_Choice]


class _Pooled(BaseModel):
    index: int
    data: list[list[Finite]] | list[Finite]


class _Pooling(BaseModel):
    data: list[_Pooled]


class VllmReward:
    """vLLM's requests; see `RewardDialect`. Language models are asked for one token, the least that vLLM writes."""

    def __init__(self, model: ServedModel, reading: Reading) -> None:
        self._model = model
        self._reading = reading
        self._names: dict[str, str] = {}
        """What each server calls the model."""
        self._of_every_token: dict[str, None] = {}
        """Servers that return the outputs at every token."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Tell which servers return far more than is read; see `RewardDialect`."""
        return tuple(
            f"{address} returns the reward model's outputs at every token, and the last of them is read: a STEP pooler "
            f"would return less"
            for address in self._of_every_token
        )

    async def meet(self, client: Client) -> int | None:
        """Check the model and its tokenizer; see `RewardDialect`."""
        self._names[client.address] = name = self._model.name_on(client, await served_models("vllm", client))
        asked = {"model": name, "prompt": TEST_TEXT, "add_special_tokens": False}
        answer = read(_Tokens, await client.post("/tokenize", asked), client, "/tokenize")
        self._model.check_tokens(client, answer.tokens, special=False)
        limit = answer.max_model_len
        return limit if limit is None or isinstance(self._reading, Head) else limit - 1

    async def values(self, client: Client, rows: Sequence[Row]) -> list[float]:
        """Return one number for each row; see `RewardDialect`."""
        reading = self._reading
        if isinstance(reading, Head):
            return await self._of_head(client, rows, reading)
        if isinstance(reading, TwoTokens):
            ids = [reading.good, reading.bad]
            asked = {"logprobs": 1, "logprob_token_ids": ids, "return_tokens_as_token_ids": True}
            found = [_two_tokens(choice, reading) for choice in await self._completed(client, rows, asked)]
        else:
            choices = await self._completed(client, rows, {"prompt_logprobs": 0})
            found = [_likelihood(row, choice) for row, choice in zip(rows, choices, strict=True)]
        values = [value for value in found if value is not None]
        if len(values) != len(rows):
            raise ServerError(f"{client.address} answered {_COMPLETIONS} without the log-probabilities asked for")
        return values

    async def _completed(self, client: Client, rows: Sequence[Row], asked: dict[str, Any]) -> list[_Choice]:
        """Return the answer for each row to a request for one greedy token."""
        body = {
            "model": self._names[client.address],
            "prompt": [list(row.tokens) for row in rows],
            "max_tokens": 1,
            "temperature": 0.0,
            "n": 1,
            **asked,
        }
        answer = await _asked(client, _COMPLETIONS, body, "start it as a language model, without --runner pooling")
        choices = sorted(read(_Completion, answer, client, _COMPLETIONS).choices, key=lambda choice: choice.index)
        check_count(client, _COMPLETIONS, len({choice.index for choice in choices}), rows)
        return choices

    async def _of_head(self, client: Client, rows: Sequence[Row], head: Head) -> list[float]:
        body = {
            "model": self._names[client.address],
            "input": [list(row.tokens) for row in rows],
            "use_activation": False,
        }
        answer = await _asked(client, _POOLING, body, "start it with --runner pooling")
        found = sorted(read(_Pooling, answer, client, _POOLING).data, key=lambda pooled: pooled.index)
        check_count(client, _POOLING, len({pooled.index for pooled in found}), rows)
        return [
            head_value(client, _POOLING, head, self._at_last(client, head, row, pooled.data))
            for row, pooled in zip(rows, found, strict=True)
        ]

    def _at_last(self, client: Client, head: Head, row: Row, data: list[list[float]] | list[float]) -> Sequence[float]:
        """Return the outputs at the last token of a row, of those at it alone, at each tag or at every token."""
        outputs = [each for each in data if isinstance(each, list)]
        if not outputs:
            return [each for each in data if not isinstance(each, list)]
        tags = row.tokens.count(head.tag) if head.tag is not None and row.tokens[-1] == head.tag else None
        if len(outputs) == len(row.tokens):
            self._of_every_token[client.address] = None
        if len(outputs) in (tags, len(row.tokens)):
            return outputs[-1]
        step = f'{{"pooling_type": "STEP", "step_tag_id": {head.tag}}}'
        expected = f"{tags} tags" if tags is not None else f"{len(row.tokens)} tokens"
        hint = f": start it with --pooler-config '{step}'" if tags is not None else ": start it without a STEP pooler"
        raise ServerError(
            f"{client.address} answered {_POOLING} with {len(outputs)} scores for a text with {expected}{hint}"
        )


async def _asked(client: Client, path: str, body: dict[str, Any], hint: str) -> Any:
    """Return an answer. A server that has no such route, or not for its model, was started for something else."""
    try:
        return await client.post(path, body)
    except ServerError:
        raise
    except BackendError as error:
        raise BackendError(f"{error}. If it serves the reward model for something else, {hint}") from error


def _two_tokens(choice: _Choice, reading: TwoTokens) -> float | None:
    tops = choice.logprobs.top_logprobs if choice.logprobs is not None else []
    top = (tops[0] if tops else None) or {}
    good, bad = (top.get(f"token_id:{token}") for token in (reading.good, reading.bad))
    return None if good is None or bad is None else good - bad


def _likelihood(row: Row, choice: _Choice) -> float | None:
    """Return the mean log-probability of the last step's tokens, None where one is missing."""
    told = choice.prompt_logprobs or []
    if len(told) != len(row.tokens):
        return None
    found = [
        (at or {}).get(token)
        for at, token in zip(told[-row.step_tokens :], row.tokens[-row.step_tokens :], strict=True)
    ]
    logprobs = [entry.logprob for entry in found if entry is not None]
    return mean_logprob(row, logprobs) if len(logprobs) == row.step_tokens else None
