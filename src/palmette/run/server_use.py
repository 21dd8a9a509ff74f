"""What servers did with their KV caches during a search: their own counts, at its end less those at its beginning."""

from collections.abc import Sequence

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.dialect import ServerMetrics
from palmette.errors import BackendError
from palmette.events import ServerUse


def metrics_of(backend: object) -> list[ServerMetrics]:
    """Return what the servers of a policy publish now; nothing for a policy in this process, or if one is gone."""
    if not isinstance(backend, ServedBackend):
        return []
    try:
        return backend.server_metrics()
    except BackendError:
        return []


def used(before: Sequence[ServerMetrics], after: Sequence[ServerMetrics]) -> tuple[ServerUse, ...]:
    """Return what each server counted between two looks. One that was started again has counted from 0."""
    begun = {metrics.address: metrics for metrics in before}
    return tuple(_difference(begun.get(metrics.address), metrics) for metrics in after)


def _difference(before: ServerMetrics | None, after: ServerMetrics) -> ServerUse:
    def counted(was: int | None, now: int | None) -> int | None:
        return now if now is None or was is None or now < was else now - was

    begun = before or ServerMetrics(after.address)
    return ServerUse(
        address=after.address,
        kv_tokens=after.kv_tokens,
        prefix_tokens=counted(begun.prefix_tokens, after.prefix_tokens),
        prefix_hits=counted(begun.prefix_hits, after.prefix_hits),
        preemptions=counted(begun.preemptions, after.preemptions),
    )
