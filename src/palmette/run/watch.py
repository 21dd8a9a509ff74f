"""The parts of a search under watch: metered by phase, and guarded where memory can run out."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from palmette.backends.backend import Backend
from palmette.backends.guarded import GuardedBackend
from palmette.events import OomRetry
from palmette.memory.device import DeviceMemory, read_device
from palmette.memory.guard import GivesUpCache, RunPieces, guard_with_meter, run_whole
from palmette.memory.meter import Meter
from palmette.memory.oom import CacheFull, TellsCacheFull
from palmette.run.occupancy import OccupancyBins
from palmette.score.guarded import GuardedEmbedder, GuardedScorer
from palmette.score.scorer import Embedder, Scorer
from palmette.settings import MemorySettings
from palmette.strategy import Children, Frontier, Strategy, Use
from palmette.units import parse_bytes

TICKS_PER_CHECK = 32
"""Ticks of the policy from one look at what the process holds to the next: a look takes 1.5 ms, a tick of a small model
4 ms."""


class Watch:
    """Puts the parts of one search under guards that share a meter.

    A guard that is at its end gives up the caches of all parts, since they lie on the same device.
    """

    def __init__(
        self,
        meter: Meter,
        settings: MemorySettings,
        backend: Backend,
        scorer: Scorer | None,
    ) -> None:
        self._meter = meter
        self._settings = settings
        self.occupancy = OccupancyBins()
        parts: tuple[object, ...] = (backend, scorer)
        self._caches = [part for part in parts if isinstance(part, GivesUpCache)]
        self._cache_full: dict[str, CacheFull] = {}
        phase = partial(self._phase, "expand", "policy", backend)
        run_pieces = self._run_pieces("wave", "node", "expand", TICKS_PER_CHECK)
        self.backend = GuardedBackend(backend, run_pieces, phase)
        self.scorer: GuardedScorer | None = None
        if scorer is not None:
            phase = partial(self._phase, "score", "reward", scorer)
            self.scorer = GuardedScorer(scorer, self._run_pieces("scoring", "step", "score"), phase)

    def embedder(self, embedder: Embedder) -> GuardedEmbedder:
        """Return the embedder under its own guard."""
        phase = partial(self._phase, "embed", "embedder", embedder)
        return GuardedEmbedder(embedder, self._run_pieces("embedding", "text", "embed"), phase)

    def strategy(self, strategy: Strategy) -> Strategy:
        """Return the strategy, its time counted."""
        return _WatchedStrategy(strategy, self.occupancy)

    @contextmanager
    def _phase(self, name: str, role: str, part: object) -> Iterator[None]:
        """Meter a phase, its memory and its time. A cache that could not grow is told like work that did not fit."""
        try:
            with self._meter.phase(name), self.occupancy.during(role):
                yield
        finally:
            cache_full = part.cache_full if isinstance(part, TellsCacheFull) else None
            if cache_full is not None and cache_full is not self._cache_full.get(role):
                self._cache_full[role] = cache_full
                self._meter.record(_retry(f"{role} cache", cache_full, read_device(self._meter.device)))

    def _run_pieces(self, name: str, unit: str, phase: str, checked_every: int = 1) -> RunPieces:
        if not self._settings.guard:
            return run_whole
        return guard_with_meter(
            self._meter,
            name,
            unit=unit,
            reclaim_least=parse_bytes(self._settings.reclaim_least),
            free_caches=self._give_up_caches,
            limit_bytes=self._meter.limit_bytes,
            checked_every=checked_every,
            planned_bytes=self._meter.planned_bytes.get(phase),
        ).run

    def _give_up_caches(self) -> bool:
        given_up = [part.give_up_cache() for part in self._caches]
        return any(given_up)


class _WatchedStrategy(Strategy):
    """A strategy that asks another one and counts the time."""

    def __init__(self, strategy: Strategy, occupancy: OccupancyBins) -> None:
        super().__init__(strategy.settings, width=strategy.width, first_step_tokens=strategy.first_step_tokens)
        self._strategy = strategy
        self._occupancy = occupancy

    @property
    def name(self) -> str:
        """The name of the other one."""
        return self._strategy.name

    @property
    def uses(self) -> frozenset[Use]:
        """What the other one uses."""
        return self._strategy.uses

    @property
    def independent(self) -> bool:
        """Whether the other one is."""
        return self._strategy.independent

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Return what the other one returns."""
        with self._occupancy.during("strategy"):
            return self._strategy.allocate(frontier, width, room)


def _retry(cache: str, cache_full: CacheFull, now: DeviceMemory) -> OomRetry:
    return OomRetry(
        guard=cache,
        unit="token",
        tried=cache_full.wanted_tokens,
        limit=cache_full.limit_tokens,
        reason=cache_full.reason,
        freed_bytes=0,
        free_bytes_before=now.free_bytes,
        free_bytes_after=now.free_bytes,
        held_bytes=now.held_bytes,
    )
