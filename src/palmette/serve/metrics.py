"""Counters of the gateway, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from palmette import __version__

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """What happened since the gateway was started."""

    def __init__(self) -> None:
        self._registry = add = CollectorRegistry()
        Gauge("palmette_info", "Version of palmette.", ["version"], registry=add).labels(__version__).set(1)
        self.requests = Counter("palmette_requests", "Requests answered.", ["path", "status"], registry=add)
        self.searches = Counter("palmette_searches", "Searches ended.", ["strategy", "end"], registry=add)
        self.tokens = Counter("palmette_tokens", "Tokens of prompts, and generated.", ["kind"], registry=add)
        self.retries = Counter("palmette_memory_retries", "Work that was split because memory ran out.", registry=add)
        self.seconds = Histogram("palmette_search_seconds", "Time of a search.", buckets=_SECONDS, registry=add)
        self.first = Histogram("palmette_first_text_seconds", "Time to the first text.", buckets=_SECONDS, registry=add)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Publish a number that is read when it is asked for."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def page(self) -> bytes:
        """Return all numbers as text."""
        return generate_latest(self._registry)
