"""What is read of a reward model on a server, and how a kind of server is asked for it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from palmette.backends.servers.client import Client, ServerError
from palmette.score.rows.row import Row
from palmette.units import count_of

Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class TwoTokens:
    """Of a language model: how much likelier `good` is than `bad` after the row, as a difference of logarithms."""

    good: int
    bad: int


@dataclass(frozen=True)
class Head:
    """Of a model with a head: its outputs at the last token of a row.

    `good` tells which of two outputs speaks for a step, None stands for a single output. A server may return the
    outputs at every `tag` in place of those at the last token.
    """

    good: int | None = None
    tag: int | None = None


@dataclass(frozen=True)
class Likelihood:
    """Of a language model: the mean log-probability of the tokens of a row's last step."""


Reading = TwoTokens | Head | Likelihood


class RewardDialect(Protocol):
    """How a kind of server is asked for the number that stands for each row."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know of the servers that were met, one line each."""

    async def meet(self, client: Client) -> int | None:
        """Ask a server what it is; return the most tokens that a row may have, None without a limit.

        Raises ConfigError if it has another model or tokenizer, or was not started for this reading.
        """

    async def values(self, client: Client, rows: Sequence[Row]) -> list[float]:
        """Return one number for each row. Raises ServerError for an answer with another number of them."""


def check_count(client: Client, path: str, found: int, rows: Sequence[Row]) -> None:
    """Raise ServerError unless a server has answered for each row."""
    if found != len(rows):
        told = f"{client.address} answered {path} for {count_of(found, 'row')}, and was asked for {len(rows)}"
        raise ServerError(told)


def head_value(client: Client, path: str, head: Head, outputs: Sequence[float]) -> float:
    """Return the number for the outputs of a head at one token. Raises ServerError for another number of outputs."""
    expected = 1 if head.good is None else 2
    if len(outputs) != expected:
        raise ServerError(
            f"{client.address} answered {path} with {count_of(len(outputs), 'output')} for a token, and {expected} "
            f"should be read: the served model has another head than reward.score or reward.profile says"
        )
    return outputs[0] if head.good is None else outputs[head.good] - outputs[1 - head.good]


def mean_logprob(row: Row, logprobs: Sequence[float]) -> float:
    """Return the mean of the log-probabilities of a row's last step."""
    return math.fsum(logprobs) / max(1, row.step_tokens)
