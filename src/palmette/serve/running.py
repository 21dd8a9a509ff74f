"""A request that is being answered: its search, its text as it comes, and what was found in the end."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from palmette.search.result import SearchResult
from palmette.serve.asking.ask import Ask
from palmette.serve.found import Choice, votes_of
from palmette.serve.searching.search_job import Piece, SearchJob
from palmette.serve.trees import GrowingTree
from palmette.serve.wire import Head, Logprobs, Usage


@dataclass(frozen=True)
class Found:
    """What a request is answered with."""

    choices: list[Choice]
    vendor: list[dict[str, Any]]
    logprobs: list[Logprobs]
    usage: Usage


class Running:
    """A search under way: `pieces` of its text as they come, None behind the last; then `found` has the answer."""

    def __init__(self, ask: Ask, head: Head, job: SearchJob, tree: GrowingTree) -> None:
        self.ask, self.head, self.job, self.tree = ask, head, job, tree
        self.pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self.found: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self.began = time.monotonic()
        self.has_told = False
        """Whether any text has come yet."""

    @property
    def vendor(self) -> dict[str, Any]:
        """What is known before anything is found."""
        settings = self.job.settings
        known = {"strategy": self.ask.strategy or "none", "width": settings.width, "seed": self.ask.seed}
        return {**known, "tree_url": f"/trees/{self.tree.id}"}

    def told_of(self, result: SearchResult, choice: Choice) -> dict[str, Any]:
        """Return the field `palmette` of a choice."""
        return {
            **self.vendor,
            "score": None if choice.score is None else round(choice.score, 6),
            "votes": [] if self.ask.strategy is None else votes_of(result),
            "tokens": result.tokens,
            "kv_peak": result.peak_kv_tokens,
            "waves": result.waves,
            "timed_out": self.job.timed_out,
        }
