"""`palmette mcp`: serves what palmette knows to agents, over stdio or HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from palmette.errors import BackendError, ConfigError


def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve over streamable HTTP at /mcp instead of stdio.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need PALMETTE_MCP_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 for any that is free.")] = 8000,
    root: Annotated[Path, typer.Option(help="The folder that runs, models and files have to be in.")] = Path("."),
    allow_runs: Annotated[bool, typer.Option("--allow-runs", help="Allow start_search and run_status.")] = False,
) -> None:
    """Serve practices, plans, reviews and diagnoses to agents by the Model Context Protocol.

    For Claude Code: claude mcp add palmette -- palmette mcp
    """
    if not root.is_dir():
        raise ConfigError(f"--root {root}: no such folder")
    try:
        from palmette.agents.mcp_http import listening, serve_http
        from palmette.agents.mcp_server import make_server
    except ImportError as error:
        raise BackendError(f"palmette mcp needs {error.name}. Install it with: pip install 'palmette[mcp]'") from error
    from threading import Thread

    from palmette.agents.formulas import sandbox
    from palmette.agents.tools import knowledge

    folder = root.resolve()
    heard = listening(host, port) if http else None
    for warm in (knowledge.warm, sandbox.plain.warm):  # Torch is loaded for the first formula that is written for it.
        Thread(target=warm, daemon=True).start()
    try:
        if heard is None:
            make_server(folder, allow_runs=allow_runs).run("stdio")
        else:
            serve_http(heard, folder, host, allow_runs=allow_runs)
    finally:
        sandbox.plain.close()
        sandbox.torch.close()
