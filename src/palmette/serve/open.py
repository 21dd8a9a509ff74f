"""From a config to a gateway: what can be served, how much KV it gets by the plan, the models loaded once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from palmette import registry
from palmette.backends.backend import OnDevice
from palmette.errors import ConfigError
from palmette.events import Event, OomRetry
from palmette.memory.device import limit_device_memory
from palmette.planner.kv_room import planned_kv_bytes
from palmette.planner.run_plan import refuse_what_cannot_fit
from palmette.run.parts import build_parts
from palmette.run.search import make_meter, notices_of
from palmette.run.watch import Watch
from palmette.search.checked import kv_bytes_per_token
from palmette.serve.asking.names import ModelNames, shown_name
from palmette.serve.bounds import Bounds
from palmette.serve.gateway import Gateway
from palmette.serve.searching.shared_engine import SharedEngine
from palmette.settings import Config
from palmette.units import parse_bytes

_PLANNED_TREES = 4
"""Without a KV budget the cache is as large as so many trees of the gateway's own width may become."""

_ANY_TEMPERATURE, _ANY_TOP_P = 0.7, 0.9
"""What is planned with: a request may scale and cut logits, whatever the policy's own settings are."""


@dataclass(frozen=True)
class Opened:
    """A gateway that is ready, and what its user should know."""

    gateway: Gateway
    kv_tokens: int | None
    kv_bytes: int | None
    notices: tuple[str, ...]


@contextmanager
def opened(config: Config, bounds: Bounds, *, name: str | None = None) -> Iterator[Opened]:
    """Load the models and give a gateway; everything is closed afterwards.

    `search.kv_budget` is what the trees of all requests may hold together. Raises ConfigError for wrong settings,
    BudgetError before a weight is read where the plan does not fit.
    """
    if config.search.width > bounds.width:
        raise ConfigError(f"search.width is {config.search.width}, and no request may ask for more than {bounds.width}")
    clusters, notices = _clusters(config)
    config, kv_bytes = _with_kv_budget(config)
    if not config.policy.is_served:
        sampling = {"temperature": _ANY_TEMPERATURE, "top_p": _ANY_TOP_P}
        refuse_what_cannot_fit(config.model_copy(update={"policy": config.policy.model_copy(update=sampling)}))
    parts = build_parts(config, clusters=clusters)
    device = parts.backend.device if isinstance(parts.backend, OnDevice) else "cpu"
    limit_device_memory(device, config.memory.inference_share)
    with make_meter(config, device) as meter:
        engine = SharedEngine(parts, Watch(meter, config.memory, parts.backend, parts.scorer), config.policy.batch_rows)
        names = ModelNames(name or shown_name(config.policy.served_model or config.policy.model), _served(config))
        kv_tokens = None if kv_bytes is None else kv_bytes // kv_bytes_per_token(parts.backend)
        gateway = Gateway(config, engine, names, bounds, kv_tokens)
        notices += notices_of(parts)

        def record(event: Event) -> None:
            if isinstance(event, OomRetry):
                gateway.metrics.retries.inc()

        try:
            with meter.recording(record):
                yield Opened(gateway, kv_tokens, kv_bytes, notices)
        finally:
            gateway.close()


def _served(config: Config) -> list[str]:
    """Return the built-in strategies that this config has the parts for."""
    found = []
    for strategy in registry.built_ins("strategy"):
        try:
            uses = config.search.model_copy(update={"strategy": strategy, "options": {}}).build_strategy().uses
        except ConfigError:
            continue  # It needs a larger width.
        if config.has_scores() or "scores" not in uses:
            found.append(strategy)
    return found


def _clusters(config: Config) -> tuple[bool, tuple[str, ...]]:
    """Return whether an embedder is loaded, and what to say where one would be and cannot."""
    ets = config.search.model_copy(update={"strategy": "ets"})
    if not config.has_scores() or "clusters" not in ets.build_strategy().uses:
        return False, ()
    if registry.is_own("embedder", config.embedder.model) or find_spec("sentence_transformers") is not None:
        return True, ()
    told = "ets is served without its term for diversity: pip install 'palmette[embed]' brings the embedder"
    return False, (told,)


def _with_kv_budget(config: Config) -> tuple[Config, int | None]:
    """Return the config with a KV budget for all trees together: its own, or what the plan has room for."""
    budget = config.search.kv_budget
    kv_bytes = planned_kv_bytes(config, _PLANNED_TREES) if budget is None else parse_bytes(budget)
    search = config.search.model_copy(update={"kv_budget": kv_bytes, "questions_in_flight": 1})
    return config.model_copy(update={"search": search}), kv_bytes
