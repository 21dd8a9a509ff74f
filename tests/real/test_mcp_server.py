"""`palmette mcp` as clients meet it: every tool through the SDK's client, over stdio and over HTTP."""

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from palmette.agents.mcp_http import KEY_VARIABLE
from tests.agent_calls import CALLS, call_all, make_run

pytestmark = pytest.mark.real
_COMMAND = [sys.executable, "-m", "palmette", "mcp"]


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more}


@contextmanager
def serving(root: Path, *flags: str, **environment: str) -> Iterator[str]:
    """Yield the address of a server over HTTP on a port that was free."""
    command = [*_COMMAND, "--http", "--port", "0", "--root", str(root), *flags]
    with subprocess.Popen(command, env=_environment(**environment), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().removeprefix("palmette mcp: ").strip()
        finally:
            process.terminate()


async def call_all_and_search(client: Client) -> set[str]:
    """Call every tool; start a search, wait for its end, and see it refused a second time."""
    called = await call_all(client)
    wanted = {"out": "new/one", "questions": 1, "width": 2}
    started = (await client.call_tool("start_search", wanted)).structured_content or {}
    assert started["run"] == "new/one"
    ends = os.pidfd_open(started["process"])  # Readable when the search has ended.
    await asyncio.to_thread(select.select, [ends], [], [])
    os.close(ends)
    status = (await client.call_tool("run_status", {"run": "new/one"})).structured_content or {}
    assert (status["state"], status["done"], status["total"]) == ("finished", 1, 1)
    refused = await client.call_tool("start_search", wanted)
    assert refused.is_error and "is not empty" in str(refused.content[0])
    outside = await client.call_tool("start_search", {**wanted, "out": "../elsewhere"})
    assert outside.is_error
    return called


def test_every_tool_answers_over_stdio_and_a_search_is_started_and_watched(tmp_path: Path) -> None:
    make_run(tmp_path)
    arguments = [*_COMMAND[1:], "--root", str(tmp_path), "--allow-runs"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=_environment())

    async def session() -> set[str]:
        async with Client(server) as client:
            return await call_all_and_search(client)

    assert asyncio.run(session()) == set(CALLS)


def test_every_tool_answers_over_http_and_a_search_is_started_and_watched(tmp_path: Path) -> None:
    make_run(tmp_path)

    async def session(address: str) -> set[str]:
        async with Client(address) as client:
            return await call_all_and_search(client)

    with serving(tmp_path, "--allow-runs") as address:
        assert address.startswith("http://127.0.0.1:")
        assert asyncio.run(session(address)) == set(CALLS)
        foreign = httpx2.post(address, headers={"Host": "evil.example"}, json={})
        assert foreign.status_code == 421  # A name that was bound anew to this address.


def test_a_server_with_a_key_answers_to_nobody_else(tmp_path: Path) -> None:
    key = "a key of sixteen and more"

    async def session(address: str) -> int:
        sender = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"})
        async with sender, Client(streamable_http_client(address, http_client=sender)) as client:
            return len((await client.list_tools()).tools)

    with serving(tmp_path, **{KEY_VARIABLE: key}) as address:
        assert httpx2.post(address, json={}).status_code == 401
        assert asyncio.run(session(address)) == len(CALLS) - 1  # Without run_status and start_search.


def test_a_server_for_others_does_not_start_without_a_key(tmp_path: Path) -> None:
    environment = {name: value for name, value in _environment().items() if name != KEY_VARIABLE}
    command = [*_COMMAND, "--http", "--host", "0.0.0.0", "--port", "0", "--root", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(
        "palmette: --host 0.0.0.0 is reached by others: set PALMETTE"
    )


def test_palmette_imports_nothing_of_it_without_being_asked() -> None:
    code = "import sys; import palmette.commands.app; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=True)
    assert not {"mcp", "starlette", "uvicorn", "torch"} & set(done.stdout.replace("'", "").strip("[]\n").split(", "))
