"""The MCP server over HTTP: loopback by default, a key where it listens further."""

import hmac
import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError

KEY_VARIABLE = "PALMETTE_MCP_KEY"
_LEAST_KEY = 16
_MOST_CONNECTIONS = 256


def is_loopback(host: str) -> bool:
    """Tell whether nobody but this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_for(host: str) -> str | None:
    """Return the key of the environment. Raises ConfigError where others reach the host and it is missing or short."""
    key = os.environ.get(KEY_VARIABLE) or None
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is reached by others: set {KEY_VARIABLE} to a key that clients send as a bearer token"
        )
    if key is not None and len(key) < _LEAST_KEY:
        raise ConfigError(f"{KEY_VARIABLE} has {len(key)} characters: give at least {_LEAST_KEY}")
    return key


class KeyGuard:
    """An ASGI app that answers 401 to requests without the key; the key is compared in constant time."""

    def __init__(self, app: Any, key: str) -> None:
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b"a bearer token is missing or wrong\n"})
                return
        await self._app(scope, receive, send)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ConfigError where it cannot, or where a key is missing."""
    key_for(host)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def serve_http(heard: socket.socket, root: Path, host: str, *, allow_runs: bool) -> None:
    """Serve at /mcp until the process is stopped; says on stderr where."""
    import uvicorn

    from palmette.slow_clients import PromptRequests

    port = heard.getsockname()[1]
    config = uvicorn.Config(
        http_app(root, host, port, allow_runs=allow_runs),
        log_level="warning",
        http=PromptRequests,
        ws="none",
        limit_concurrency=_MOST_CONNECTIONS,
    )
    shown = f"[{host}]" if ":" in host else host
    print(f"palmette mcp: http://{shown}:{port}/mcp", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[heard])


def http_app(root: Path, host: str, port: int, *, allow_runs: bool) -> Any:
    """Return the ASGI app of the server at /mcp."""
    from mcp.server.transport_security import TransportSecuritySettings

    from palmette.agents.mcp_server import make_server

    key = key_for(host)
    names = [f"{name}:{port}" for name in (host, "127.0.0.1", "localhost", "[::1]")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=is_loopback(host),
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    server = make_server(root, allow_runs=allow_runs)
    app = server.streamable_http_app(host=host, transport_security=security, json_response=True, stateless_http=True)
    return app if key is None else KeyGuard(app, key)
