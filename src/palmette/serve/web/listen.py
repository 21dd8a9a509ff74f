"""Listens: on loopback unless told else, with a key where others can reach it, until it is told to stop."""

import ipaddress
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from palmette.errors import ConfigError, RunError
from palmette.serve.gateway import Gateway
from palmette.serve.web.app import make_app
from palmette.slow_clients import PromptRequests

KEY_VARIABLE = "PALMETTE_SERVE_KEY"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_SHORTEST_KEY = 16


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(host: str, key_file: Path | None) -> str | None:
    """Return the key of a file or of the environment. Raises ConfigError where there has to be one and is none.

    A key is no flag: every process of the machine can read the command line.
    """
    try:
        key = key_file.read_text(encoding="utf-8").strip() if key_file else os.environ.get(KEY_VARIABLE, "").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--key-file {key_file}: cannot be read: {error}") from error
    if key_file and not key:
        raise ConfigError(f"--key-file {key_file} is empty")
    if key and (len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key):
        raise ConfigError(f"the key needs {_SHORTEST_KEY} characters or more, printable ASCII without spaces")
    if not key and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: others can reach that address, and there is no key. Set {KEY_VARIABLE} or --key-file, "
            f"or listen on 127.0.0.1"
        )
    return key or None


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets of an address, which do not listen yet. Raises ConfigError where it cannot be had.

    They are made before models are loaded: whoever has started a second gateway learns that at once.
    """
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found if port else found[:1]:
            made.append(socket.socket(family, kind, protocol))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made[-1].bind(address)
    except OSError as error:
        for each in made:
            each.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made


def listen(gateway: Gateway, host: str, sockets: list[socket.socket], key: str | None) -> None:
    """Answer requests until SIGINT or SIGTERM; then let searches end, give up those that take too long, and return."""
    hosts = {*_LOOPBACK_NAMES, host} if is_loopback(host) else ()
    config = uvicorn.Config(
        make_app(gateway, key, hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(gateway.bounds.drain_seconds),
        limit_concurrency=4 * (gateway.bounds.searches + gateway.bounds.waiting),
        h11_max_incomplete_event_size=64 * 1024,
        lifespan="on",
        ws="none",
        http=PromptRequests,
    )
    server = _Server(config, gateway)
    signal.signal(signal.SIGTERM, _leave)  # uvicorn ends as asked, then raises the signal again.
    try:
        server.run(sockets=sockets)
    except OSError as error:  # Another process has begun to listen there while models were loaded.
        raise RunError(f"cannot listen on {host}: {error.strerror or error}") from error


class _Server(uvicorn.Server):
    """Says where it listens once it does; lets no request in any more once it is told to stop."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: Any = None) -> None:
        """Let searches that are under way end, and no others begin."""
        self._gateway.admission.close()
        await super().shutdown(sockets)

    async def startup(self, sockets: Any = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for each in server.sockets:
                host, port = each.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                print(f"palmette: listening on http://{shown}:{port}", file=sys.stderr, flush=True)


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)
