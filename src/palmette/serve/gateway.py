"""The gateway without HTTP: requests are planned, let in, searched in threads, and counted."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Lock
from typing import Any

from palmette import __version__
from palmette.backends.backend import TellsKv, Tokenizes
from palmette.errors import ConfigError
from palmette.memory.heap import trim_heap
from palmette.score.judge import load_judge
from palmette.search.cluster import by_meaning
from palmette.search.growth import Limits
from palmette.search.result import SearchResult
from palmette.serve.asking.ask import Ask, search_settings
from palmette.serve.asking.efforts import Room, extent
from palmette.serve.asking.names import ModelNames
from palmette.serve.asking.prompt import read_prompt
from palmette.serve.bounds import Bounds
from palmette.serve.found import Choice, choices_of, path_logprobs
from palmette.serve.metrics import Metrics
from palmette.serve.running import Found, Running
from palmette.serve.searching.admission import Admission, Place
from palmette.serve.searching.search_job import QUESTION, Piece, SearchJob
from palmette.serve.searching.seat import GivenUpError, Seat
from palmette.serve.searching.shared_engine import SharedEngine
from palmette.serve.trees import TreeStore
from palmette.serve.wire import Head, Logprobs, Usage
from palmette.settings import Config, SearchSettings
from palmette.tasks.task import Question, check_question, own_format, read_format

log = logging.getLogger("palmette.serve")

_TRIM_SECONDS = 20.0
# Searches leave gaps in the C library's heap: after 95 of them 18 of 607 MiB were free in it and not given back.


class Gateway:
    """Answers requests with searches on one engine. All methods but `close` are for the event loop's thread."""

    def __init__(
        self,
        config: Config,
        engine: SharedEngine,
        names: ModelNames,
        bounds: Bounds,
        kv_tokens: int | None,
    ) -> None:
        self.config, self.names, self.bounds = config, names, bounds
        self.form = read_format(own_format(config.task), config.task)
        self.trees = TreeStore(bounds.kept_trees)
        self.metrics = Metrics()
        self.admission = Admission(kv_tokens, bounds)
        self.engine = engine
        backend = engine.parts.backend
        self._room = Room(
            backend.context_tokens, kv_tokens, config.search.width, config.search.total_tokens, bounds.width
        )
        self._judge = load_judge("math" if config.task.judge == "auto" else config.task.judge, config.task)
        self._judging = Lock()
        self._numbers = count(1)
        self._threads = ThreadPoolExecutor(bounds.searches, thread_name_prefix="palmette-search")
        self._running: set[Running] = set()
        self._trimmed = 0.0
        self.metrics.watch("palmette_searches_running", "Searches under way.", lambda: self.admission.searches)
        self.metrics.watch("palmette_requests_waiting", "Requests in line.", lambda: self.admission.waiting)
        self.metrics.watch("palmette_kv_tokens_promised", "KV tokens let in.", lambda: self.admission.taken_tokens)
        if isinstance(backend, TellsKv):
            self.metrics.watch("palmette_kv_tokens_held", "KV tokens in the cache.", lambda: backend.kv_tokens_held)

    async def begin(self, ask: Ask) -> Running:
        """Start the search of a request. Raises ApiError where it is refused or there is no room, ConfigError too."""
        question = Question(QUESTION, ask.messages, text=ask.question)
        check_question(question, "the request")
        prompt = await asyncio.wrap_future(
            self.engine.call(lambda: read_prompt(ask, self.engine.parts, self.config.policy))
        )
        width = ask.n if ask.strategy is None else ask.details.width
        grown = extent(self._room, len(prompt), ask.effort, width=width, total_tokens=ask.max_tokens)
        has_clusters = self.engine.parts.embedder is not None
        settings = search_settings(self.config.search, ask, grown, clusters=has_clusters)
        uses = settings.build_strategy().uses
        place = await self.admission.enter(grown.kv_tokens)
        try:
            return self._start(ask, question, prompt, settings, place, clusters=has_clusters and "clusters" in uses)
        except BaseException:
            self.admission.leave(place)
            raise

    def give_up(self, running: Running) -> None:
        """End a search whose client has gone; nothing happens to one that has ended."""
        running.job.give_up()

    async def drain(self) -> None:
        """Give up what is left and wait until all searches have ended."""
        left = list(self._running)
        for running in left:
            running.job.give_up()
        if left:
            await asyncio.wait([running.found for running in left])

    def close(self) -> None:
        """Give up what is left and end the threads."""
        for running in list(self._running):
            running.job.give_up()
        self._threads.shutdown()
        self.engine.close()

    def _start(
        self,
        ask: Ask,
        question: Question,
        prompt: tuple[int, ...],
        settings: SearchSettings,
        place: Place,
        *,
        clusters: bool,
    ) -> Running:
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        plain = ask.strategy is None
        limits = Limits(
            settings.width, settings.depth, settings.step_tokens, settings.total_tokens, 1, None,
            "\n" if plain else self.form.step_end, ask.stops[0] if len(ask.stops) == 1 else None,
        )  # fmt: skip
        seat = Seat(
            self.engine, f"request-{number}", prompt, deadline=time.monotonic() + self.bounds.seconds,
            temperature=ask.temperature, top_p=ask.top_p, stops=ask.stops,
        )  # fmt: skip

        def tell(piece: Piece) -> None:
            loop.call_soon_threadsafe(self._tell, running, piece)

        job = SearchJob(
            self.engine, seat, question, settings, limits, ask.seed, self._judge, self._judging,
            tell, plain, ask.stops,
            by_meaning(self.engine, self.config.embedder.cut) if clusters else None,
        )  # fmt: skip
        tree = self.trees.add(ask.model, settings, job.events)
        name = f"{'chatcmpl' if ask.kind == 'chat' else 'cmpl'}-{tree.id}"
        head = Head(name, ask.model, int(time.time()), ask.kind, f"palmette-{__version__}")
        running = Running(ask, head, job, tree)
        future = self._threads.submit(self._work, running, len(prompt))
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._ended, running, place, done))
        self._running.add(running)
        return running

    def _work(self, running: Running, prompt_tokens: int) -> tuple[SearchResult, Found]:
        """Search and read the answers; runs in a thread of its own."""
        ask, job = running.ask, running.job
        result = job.run()
        plain = ask.strategy is None
        whole = ask.details.content == "solution"
        choices = choices_of(result, job.settings, ask.n, ask.stops, plain=plain, whole=whole)
        job.follow(choices[0].leaf)
        logprobs = [self._logprobs(result, choice) for choice in choices] if ask.logprobs else []
        usage = Usage(prompt_tokens, result.tokens, 0 if plain else result.tokens, job.seat.cached_tokens)
        return result, Found(choices, [running.told_of(result, choice) for choice in choices], logprobs, usage)

    def _logprobs(self, result: SearchResult, choice: Choice) -> Logprobs:
        tokens, logprobs = path_logprobs(result.tree, choice.leaf)
        backend = self.engine.parts.backend
        assert isinstance(backend, Tokenizes)
        return Logprobs(self.engine.call(lambda: backend.spell(tokens)).result(), logprobs)

    def _tell(self, running: Running, piece: Piece) -> None:
        if not running.has_told:
            running.has_told = True
            self.metrics.first.observe(time.monotonic() - running.began)
        running.pieces.put_nowait(piece)

    def _ended(self, running: Running, place: Place, done: Any) -> None:
        """Count a search that has ended, and free its place: its KV is free already."""
        self._running.discard(running)
        self.admission.leave(place)
        error = done.exception()
        end = "done" if error is None else "given_up" if isinstance(error, GivenUpError) else "failed"
        self.metrics.searches.labels(running.ask.strategy or "none", end).inc()
        self.metrics.seconds.observe(time.monotonic() - running.began)
        if error is None:
            result, found = done.result()
            running.tree.finish(result)
            self.metrics.tokens.labels("prompt").inc(found.usage.prompt)
            self.metrics.tokens.labels("generated").inc(found.usage.completion)
            running.found.set_result(found)
        else:
            running.tree.failed = True
            if not isinstance(error, GivenUpError | ConfigError):
                log.error("a search failed: %s", error, exc_info=error)
            running.found.set_exception(error)
            running.found.exception()  # Nobody may be waiting for it any more.
        running.pieces.put_nowait(None)
        self.trees.shrink()
        if time.monotonic() > self._trimmed + _TRIM_SECONDS:
            self._trimmed = time.monotonic()
            asyncio.get_running_loop().run_in_executor(None, trim_heap)
