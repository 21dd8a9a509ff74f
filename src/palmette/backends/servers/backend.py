"""The backend of a policy on servers: steps are started as requests in flight, and handed over as they are answered."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Literal, cast
from weakref import finalize

from palmette.backends.backend import Expansion, Message, Step, check_length
from palmette.backends.chat import encode_prompt, render, spell
from palmette.backends.servers.client import Client
from palmette.backends.servers.dialect import Dialect, Request, Served, ServerMetrics, TakesVersions, Weights
from palmette.backends.servers.loop_thread import LoopThread
from palmette.backends.servers.pool import Pool
from palmette.backends.servers.versions import drop_weights, use_weights
from palmette.backends.servers.writer import StepWriter
from palmette.backends.step_text import StepText

_INTERRUPTED = -1
"""What stands among the numbers of requests that are done where nothing is done, but `finished` shall return."""

_TRIED_TOKENS = 8
"""How long the sample is that tells whether servers honor seeds."""


class ServedBackend:
    """Writes steps on the servers at `addresses`, all of the same model; see `StartsSteps`.

    All of them are asked who they are before the constructor returns. Raises ConfigError if one serves another model,
    BackendError if one cannot be reached. At most `most_in_flight` requests are out at a time. KV is the servers' own
    affair: `release` only gives up requests. `tokenizer` encodes prompts in the caller's thread; `dialect` and `text`
    are used in another one and need a copy of their own, since encoding changes settings of a tokenizer.
    """

    takes_sampling: Literal[True] = True

    def __init__(
        self,
        dialect: Dialect,
        tokenizer: Any,
        text: StepText,
        *,
        addresses: Sequence[str],
        kv_bytes_per_token: int,
        answer_seconds: float,
        most_in_flight: int,
        return_seconds: float = 0.0,
    ) -> None:
        self.kv_bytes_per_token = kv_bytes_per_token
        self.on_tokens: Callable[[int], None] | None = None
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._clients = [
            Client(address, answer_seconds=answer_seconds, connections=most_in_flight) for address in addresses
        ]
        self._pool = Pool(self._clients, dialect.meet, return_seconds=return_seconds)
        self._writer = StepWriter(dialect, self._pool, text, most_in_flight)
        self._numbers = count()
        self._flying: dict[int, tuple[Expansion, Future[Step | Exception]]] = {}
        self._failed: list[tuple[Expansion, Exception]] = []
        """Steps that failed, until `finished` raises their errors."""
        self.failed_question: str | None = None
        self._landed: SimpleQueue[int] = SimpleQueue()
        """Numbers of requests that are done, also of those given up."""
        self._loop = LoopThread(self._clients)
        self.close = finalize(self, self._loop.close)  # A backend that is dropped ends its thread too.
        """Gives up all requests and closes all connections. Safe to call twice."""
        try:
            served = self._loop.wait_for(self._meet())
        except BaseException:
            self.close()
            raise
        limits = [each.context_tokens for each in served if each.context_tokens is not None]
        self.context_tokens = min(limits, default=None)
        self.notices = tuple(dict.fromkeys(notice for each in served for notice in each.notices))

    @property
    def calls(self) -> int:
        """Requests answered so far: how many forward passes they took, only the servers know."""
        return sum(client.answers for client in self._clients)

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a prompt; see `Backend`. The tokenizer is this machine's copy of the policy's."""
        return render(self._tokenizer, messages)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt without a template; see `Tokenizes`."""
        return encode_prompt(self._tokenizer, text)

    def spell(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token; see `Tokenizes`."""
        return spell(self._tokenizer, tokens)

    def interrupt(self) -> None:
        """Have `finished` return at once; see `Interruptible`."""
        self._landed.put(_INTERRUPTED)

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Take these expansions; see `StartsSteps`. Raises ConfigError, with none taken, if one may be too long."""
        for expansion in expansions:
            check_length(expansion, self.context_tokens)
        for expansion in expansions:
            number = next(self._numbers)
            future = self._loop.begin(_outcome(self._writer, expansion))
            self._flying[number] = expansion, future
            future.add_done_callback(_putting(self._landed, number))

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Wait until a step is done; see `StartsSteps`. A step that failed is not in flight any more.

        Raises what a step failed with once all that are done were returned; `failed_question` tells whose it was.
        """
        done: list[tuple[Expansion, Step]] = []
        while self._flying and not done and not self._failed:
            numbers = [self._landed.get()]
            while (more := _next(self._landed)) is not None:
                numbers.append(more)
            landed = [self._flying.pop(number) for number in numbers if number in self._flying]
            for expansion, future in landed:
                outcome = future.result()
                if isinstance(outcome, Exception):
                    self._failed.append((expansion, outcome))
                else:
                    done.append((expansion, outcome))
            if _INTERRUPTED in numbers:
                break
        if self._failed and not done:
            expansion, error = self._failed.pop(0)
            self.failed_question = expansion.question
            raise error
        if done and self.on_tokens is not None:
            self.on_tokens(sum(len(step.tokens) for _, step in done))
        return done

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Give up the requests in flight for these nodes; see `Backend`. Servers free KV when they need the room."""
        gone = set(nodes)
        for number, (expansion, future) in list(self._flying.items()):
            if expansion.question == question and expansion.node in gone:
                del self._flying[number]
                future.cancel()
        self._failed = [pair for pair in self._failed if pair[0].question != question or pair[0].node not in gone]

    def server_metrics(self) -> list[ServerMetrics]:
        """Return what each server publishes of its KV cache, in the order of the addresses."""
        return [self._loop.wait_for(self._dialect.metrics(client)) for client in self._clients]

    @property
    def logprob_temperature(self) -> float:
        """The temperature of the log-probabilities that servers return for the policy's own settings."""
        return self._dialect.logprob_temperature(None)

    @property
    def stale_steps(self) -> int:
        """Steps so far that a server wrote with other weights than those of `use_weights`."""
        return self._writer.stale_steps

    def take_stale(self) -> dict[str, set[str]]:
        """Return by question the names of other weights that servers wrote steps with since the last call."""
        stale, self._writer.stale = self._writer.stale, {}
        return stale

    def use_weights(self, weights: Weights) -> None:
        """Have all servers write with these weights; see `versions.use_weights`. Nothing may be in flight."""
        self._loop.wait_for(use_weights(self._versions(), self._clients, self._pool, weights))

    def drop_weights(self, beginning: str) -> None:
        """Take all weights whose names begin so off the servers, as far as these can be reached."""
        self._loop.wait_for(drop_weights(self._versions(), self._clients, beginning))

    def _versions(self) -> TakesVersions:
        assert hasattr(self._dialect, "weights"), "training checks which servers take weights"
        return cast(TakesVersions, self._dialect)

    async def _meet(self) -> list[Served]:
        """Ask every server who it is, and whether it gives the same sample for the same seed as itself and others."""
        served = [await self._dialect.meet(client) for client in self._clients]
        prompt = self._tokenizer.encode("The answer is", add_special_tokens=False)
        request = Request(prompt, seed=1, max_tokens=_TRIED_TOKENS, stops=())
        asked = [self._dialect.write(client, request) for client in self._clients for _ in range(2)]
        samples = {tuple(written.tokens) for written in await asyncio.gather(*asked)}
        if len(samples) > 1:
            served.append(Served(None, ("the servers do not repeat a sample with the same seed: neither will a run",)))
        return served


async def _outcome(writer: StepWriter, expansion: Expansion) -> Step | Exception:
    """Return the step, or the error as a value: asyncio prints errors of requests that nobody waits for any more."""
    try:
        return await writer.write(expansion)
    except Exception as error:  # noqa: BLE001  # Raised by `finished`.
        return error


def _putting(landed: "SimpleQueue[int]", number: int) -> "Callable[[Future[Step | Exception]], None]":
    return lambda _: landed.put(number)


def _next(landed: "SimpleQueue[int]") -> int | None:
    try:
        return landed.get_nowait()
    except Empty:
        return None
