"""`palmette serve`: an OpenAI-compatible gateway whose models search."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from palmette.commands import flags
from palmette.errors import ConfigError
from palmette.units import count_of, format_bytes, one_line

_NEEDED = ("starlette", "uvicorn", "prometheus_client")


def serve(
    run: flags.RunFile = None,
    config_file: flags.ConfigFile = None,
    policy: flags.Policy = None,
    reward: flags.Reward = None,
    strategy: flags.StrategyName = None,
    width: flags.Width = None,
    settings: flags.Settings = None,
    embedder: flags.Embedder = None,
    devices: flags.Devices = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65_535)] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the policy; default: its own name.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the key, or set PALMETTE_SERVE_KEY.")] = None,
    kv: Annotated[str | None, typer.Option(help="KV of all trees together, such as 2GiB; default: by plan.")] = None,
    searches: Annotated[int, typer.Option(help="Searches at a time.", min=1, max=1024)] = 32,
    waiting: Annotated[int, typer.Option(help="Requests that may wait in line.", min=0, max=65_536)] = 64,
    most_width: Annotated[int, typer.Option(help="Branches that a request may ask for.", min=1, max=65_536)] = 64,
    seconds: Annotated[float, typer.Option(help="Time of a search; then it ends with what it has.", min=1)] = 300.0,
    body: Annotated[str, typer.Option(help="Largest body of a request.")] = "1MiB",
) -> None:
    """Serve a policy to OpenAI clients: the model's name chooses the search, seedling:ets for example."""
    _check_installed()
    from palmette.config import load_config
    from palmette.serve.bounds import Bounds
    from palmette.serve.open import opened
    from palmette.serve.web.listen import bound, listen, read_key
    from palmette.units import parse_bytes

    given: dict[str, Any] = {
        "policy.model": policy,
        "reward.model": reward,
        "search.strategy": strategy,
        "search.width": width,
        "embedder.model": embedder,
        "memory.devices": devices,
    }
    config = load_config(flags.one_file(run, config_file), flags.overrides_of(given, settings))
    config.scale.refuse_for("serve")
    if kv is not None:
        budget = parse_bytes(kv)
        config = config.model_copy(update={"search": config.search.model_copy(update={"kv_budget": budget})})
    bounds = Bounds(body_bytes=parse_bytes(body), width=most_width, seconds=seconds, searches=searches, waiting=waiting)
    key = read_key(host, key_file)
    sockets = bound(host, port)
    with opened(config, bounds, name=name) as ready:
        for notice in ready.notices:
            print(f"palmette: {one_line(notice, 300)}", file=sys.stderr)
        room = "not limited" if ready.kv_tokens is None else count_of(ready.kv_tokens, "token")
        size = "" if ready.kv_bytes is None or config.policy.is_served else f", {format_bytes(ready.kv_bytes)}"
        print(f"palmette: models {', '.join(ready.gateway.names.all())}", file=sys.stderr)
        print(f"palmette: KV of all trees together: {room}{size}", file=sys.stderr)
        listen(ready.gateway, host, sockets, key)


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"palmette serve needs {', '.join(missing)}: pip install 'palmette[serve]'")
