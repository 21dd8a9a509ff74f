"""Scores steps by a reward model on servers: the rows of a wave are in flight at once, without a thread each."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from weakref import finalize

from palmette.backends.backend import Message
from palmette.backends.servers.client import Client
from palmette.backends.servers.loop_thread import LoopThread
from palmette.backends.servers.pool import Ask, Pool
from palmette.score.rows.row import Row, Rows, prompt_key
from palmette.score.scorer import Candidate
from palmette.score.served.reading import RewardDialect
from palmette.score.values import gain, on_grid

ROWS_TOGETHER = 32
"""How many rows of a question one request holds at most. A request that fails is asked again as a whole."""

_TEST = Candidate(({"role": "user", "content": "2+3-1"},), ("2+3=5\n", "5-1=4\n"), finished=False, question="2+3-1")
"""What every server has to score before it is used. Each step has a tag of its own."""


class ServedScorer:
    """Scores rows on the servers at `addresses`, all of the same reward model; see `Scorer`.

    All of them are asked who they are, and to score a test text, before the constructor returns. Raises ConfigError if
    one serves another model, BackendError if one cannot be reached or returns another number of scores. A question
    stays with one server, which has its prefixes cached. `score` turns a server's number into a score; the number is
    rounded before, as in this process. A candidate longer than the model's context scores 0, and with `skips_empty` an
    empty step 1 without being asked for. At most `batch_rows` rows are in flight.
    """

    def __init__(
        self,
        dialect: RewardDialect,
        rows: Rows,
        score: Callable[[float], float],
        *,
        addresses: Sequence[str],
        answer_seconds: float,
        batch_rows: int,
        return_seconds: float = 0.0,
        skips_empty: bool = False,
    ) -> None:
        self._dialect = dialect
        self._rows = rows
        self._score = score
        self._skips_empty = skips_empty
        self._together = min(batch_rows, ROWS_TOGETHER)
        in_flight = max(1, batch_rows // self._together)
        self._clients = [
            Client(address, answer_seconds=answer_seconds, connections=in_flight + 1, role="reward")
            for address in addresses
        ]
        meet = partial(_meet, dialect, rows.of([_TEST]))
        rows.prompts.clear()
        self._pool = Pool(self._clients, meet, return_seconds=return_seconds)
        self._places = asyncio.Semaphore(in_flight)
        self.loop = LoopThread(self._clients)
        self.close = finalize(self, self.loop.close)  # A scorer that is dropped ends its thread too.
        """Gives up all requests and closes all connections. Safe to call twice."""
        try:
            limits = self.loop.wait_for(_meet_all(meet, self._clients))
        except BaseException:
            self.close()
            raise
        self.notices = dialect.notices
        """What the user should know before a search; see `TellsNotices`."""
        self._limit = min((limit for limit in limits if limit is not None), default=None)

    @property
    def calls(self) -> int:
        """Requests answered so far: how many forward passes they took, only the servers know."""
        return sum(client.answers for client in self._clients)

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that the reward model cannot be given; see `ReadsPrompts`."""
        self._rows.check_prompt(messages)

    def forget(self, messages: Sequence[Message]) -> None:
        """Forget a question; see `KeepsPaths`. Servers free KV when they need the room."""
        key = prompt_key(messages)
        self._rows.prompts.pop(key, None)
        self._pool.forget(str(key))

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score for each candidate, in order. Raises BackendError where no server gives it."""
        return waited(self.begin(candidates))

    def begin(self, candidates: Sequence[Candidate]) -> "Future[list[float]]":
        """Have the servers score; see `StartsScores`."""
        rows = self._rows.of(candidates)
        by_question: dict[str, dict[Row, None]] = {}
        for candidate, row in zip(candidates, rows, strict=True):
            if self._is_asked(row):
                by_question.setdefault(str(prompt_key(candidate.messages)), {})[row] = None
        return self.loop.begin(self._scores(rows, by_question))

    def wait(self, begun: "Collection[Future[list[float]]]") -> None:
        """Wait until one of these is done; see `StartsScores`."""
        wait(begun, return_when=FIRST_COMPLETED)

    def _is_asked(self, row: Row) -> bool:
        return self._fits(row) and bool(row.step_tokens or not self._skips_empty)

    def _fits(self, row: Row) -> bool:
        return self._limit is None or len(row.tokens) <= self._limit

    async def _scores(self, rows: Sequence[Row], by_question: dict[str, dict[Row, None]]) -> list[float]:
        parts: list[tuple[str, list[Row]]] = []
        for question, distinct in by_question.items():
            asked = list(distinct)
            parts += [(question, asked[i : i + self._together]) for i in range(0, len(asked), self._together)]
        tasks = [asyncio.ensure_future(self._values(question, part)) for question, part in parts]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        found: dict[Row, float] = {}
        for (_, part), values in zip(parts, answers, strict=True):
            found.update(zip(part, values, strict=True))
        return [self._score(on_grid(found.get(row, 0.0))) if self._fits(row) else 0.0 for row in rows]

    async def _values(self, question: str, rows: Sequence[Row]) -> list[float]:
        async with self._places:
            return await self._pool.run(question, partial(self._dialect.values, rows=rows))


async def _meet(dialect: RewardDialect, test: Sequence[Row], client: Client) -> int | None:
    """Return the most tokens of a row on a server that is what it should be, and scores the test."""
    limit = await dialect.meet(client)
    await dialect.values(client, test)
    return limit


async def _meet_all(meet: Ask[int | None], clients: Sequence[Client]) -> list[int | None]:
    return [await meet(client) for client in clients]


class ServedGain:
    """Scores steps by how much more a larger model expects them than a smaller one, each on servers of its own."""

    def __init__(self, large: ServedScorer, small: ServedScorer) -> None:
        self._scorers = (large, small)
        self._loop = large.loop
        self.notices = (*large.notices, *small.notices)

    @property
    def calls(self) -> int:
        """Requests answered so far, of both models."""
        return sum(scorer.calls for scorer in self._scorers)

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that a model cannot be given; see `ReadsPrompts`."""
        for scorer in self._scorers:
            scorer.check_prompt(messages)

    def forget(self, messages: Sequence[Message]) -> None:
        """Forget a question; see `KeepsPaths`."""
        for scorer in self._scorers:
            scorer.forget(messages)

    def close(self) -> None:
        """Close the connections to all servers. Safe to call twice."""
        for scorer in self._scorers:
            scorer.close()

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score for each candidate, in order; both models are asked at the same time."""
        return waited(self.begin(candidates))

    def begin(self, candidates: Sequence[Candidate]) -> "Future[list[float]]":
        """Have the servers of both models score; see `StartsScores`."""
        large, small = [scorer.begin(candidates) for scorer in self._scorers]
        return self._loop.begin(_gained(large, small))

    def wait(self, begun: "Collection[Future[list[float]]]") -> None:
        """Wait until one of these is done; see `StartsScores`."""
        wait(begun, return_when=FIRST_COMPLETED)


async def _gained(large: "Future[list[float]]", small: "Future[list[float]]") -> list[float]:
    """Return what the larger model expects more than the smaller one. Where one fails the other is given up."""
    both = [asyncio.wrap_future(large), asyncio.wrap_future(small)]
    try:
        return [gain(one, other) for one, other in zip(*await asyncio.gather(*both), strict=True)]
    finally:
        for each in both:
            each.cancel()


def waited(scores: "Future[list[float]]") -> list[float]:
    """Return the scores when they are there; give the requests up where waiting is interrupted."""
    try:
        return scores.result()
    except BaseException:
        scores.cancel()
        raise
