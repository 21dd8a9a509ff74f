"""The parts of a search under watch: metered by phase, and guarded where memory can run out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from palmette.backends.backend import Backend
from palmette.backends.guarded import GuardedBackend
from palmette.config import MemorySettings
from palmette.events import OomRetry
from palmette.memory.device import DeviceMemory, read_device
from palmette.memory.guard import RunPieces, guard_with_meter, run_whole
from palmette.memory.meter import Meter
from palmette.memory.oom import CacheFull
from palmette.score.guarded import GuardedEmbedder, GuardedScorer
from palmette.score.scorer import Embedder, Scorer
from palmette.units import parse_bytes


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
        parts = (getattr(part, "give_up_cache", None) for part in (backend, scorer))
        self._caches: list[Callable[[], bool]] = [give_up for give_up in parts if give_up is not None]
        self._freezes: dict[str, CacheFull] = {}
        phase = partial(self._phase, "expand", "policy", backend)
        self.backend = GuardedBackend(backend, self._run_pieces("wave", "node", "expand"), phase)
        self.scorer: GuardedScorer | None = None
        if scorer is not None:
            phase = partial(self._phase, "score", "reward", scorer)
            self.scorer = GuardedScorer(scorer, self._run_pieces("scoring", "step", "score"), phase)

    def embedder(self, embedder: Embedder) -> GuardedEmbedder:
        """Return the embedder under its own guard."""
        return GuardedEmbedder(
            embedder, self._run_pieces("embedding", "text", "embed"), partial(self._meter.phase, "embed")
        )

    @contextmanager
    def _phase(self, name: str, role: str, part: object) -> Iterator[None]:
        """Meter a phase. A cache that could not grow in it is told like work that did not fit."""
        try:
            with self._meter.phase(name):
                yield
        finally:
            freeze: CacheFull | None = getattr(part, "freeze", None)
            if freeze is not None and freeze is not self._freezes.get(role):
                self._freezes[role] = freeze
                self._meter.record(_retry(f"{role} cache", freeze, read_device(self._meter.device)))

    def _run_pieces(self, name: str, unit: str, phase: str) -> RunPieces:
        if not self._settings.guard:
            return run_whole
        return guard_with_meter(
            self._meter,
            name,
            unit=unit,
            reclaim_least=parse_bytes(self._settings.reclaim_least),
            free_caches=self._give_up_caches,
            limit_bytes=self._meter.limit_bytes,
            planned_bytes=self._meter.planned_bytes.get(phase),
        ).run

    def _give_up_caches(self) -> bool:
        given_up = [give_up() for give_up in self._caches]
        return any(given_up)


def _retry(cache: str, freeze: CacheFull, now: DeviceMemory) -> OomRetry:
    return OomRetry(
        guard=cache,
        unit="token",
        tried=freeze.wanted_tokens,
        limit=freeze.limit_tokens,
        reason=freeze.reason,
        freed_bytes=0,
        free_bytes_before=now.free_bytes,
        free_bytes_after=now.free_bytes,
        held_bytes=now.held_bytes,
    )
