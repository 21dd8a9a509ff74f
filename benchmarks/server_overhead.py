"""What a search over a server costs beside the server: tokens a second against a plain client, many requests at once.

    python -m benchmarks.server_overhead --vllm .venv-vllm/bin/python
    python -m benchmarks.server_overhead --in-flight 2000

With `--vllm` or `--sglang`, the Python that has the engine, a server of the policy is started as `palmette up` does. A
search runs on it, its requests are kept, and a plain client sends the same ones once more: all at once, with as many in
flight as the search may have. Both find the server's cache warm, and they alternate. With `--in-flight`, requests go to
a loopback server in a process of its own; memory and processor time are those of this process alone.
"""

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

import palmette
from palmette.backends.servers.client import Client
from palmette.commands.up import StartLine
from palmette.config import load_config
from palmette.launch.run import planned_commands, started, with_addresses
from palmette.settings import Config

Sent = list[tuple[str, dict[str, Any]]]


def search_rate(config: Config, sent: Sent | None = None) -> float:
    """Search; return tokens written in a second of search. `sent` gets the requests to write."""
    post = Client.post

    async def kept(self: Client, path: str, body: dict[str, Any]) -> Any:
        if sent is not None and path in ("/generate", "/v1/completions"):
            sent.append((self.address + path, body))
        return await post(self, path, body)

    Client.post = kept  # type: ignore[method-assign]
    try:
        with palmette.Searcher(config=config) as searcher:
            task = palmette.load_task("ladder", questions=config.task.questions, grade=1)
            begun = time.monotonic()
            results = searcher.search(task)
            seconds = time.monotonic() - begun
    finally:
        Client.post = post  # type: ignore[method-assign]
    return sum(result.tokens for result in results) / seconds


async def plain_rate(sent: Sent, in_flight: int) -> float:
    """Send requests as fast as they are answered; return tokens written in a second."""
    places = asyncio.Semaphore(in_flight)
    limits = httpx2.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx2.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:

        async def ask(url: str, body: dict[str, Any]) -> int:
            async with places:
                answer = (await client.post(url, json=body)).json()
            return len(answer["choices"][0]["token_ids"] if "choices" in answer else answer["output_ids"])

        begun = time.monotonic()
        tokens = sum(await asyncio.gather(*(ask(url, body) for url, body in sent)))
        return tokens / (time.monotonic() - begun)


def compare(engine: str, python: str, policy: str, questions: int, width: int, rounds: int) -> None:
    """Print tokens a second of both, round by round."""
    told = {
        "policy.model": policy, "policy.backend": engine, f"servers.{engine}_python": python, "reward.model": None,
        "search.strategy": "best_of_n", "search.width": width, "search.total_tokens": 96, "task.questions": questions,
        "search.questions_in_flight": questions, "memory.prompt_tokens": 128,
    }  # fmt: skip
    config = load_config(None, told)
    commands = planned_commands(config)
    waits = StartLine()
    with TemporaryDirectory() as folder, started(config, commands, Path(folder), waits.tell, waits.show):
        config = with_addresses(config, commands)
        sent: Sent = []
        search_rate(config, sent)
        print(f"{engine}, {policy}: {questions} questions, best_of_n of width {width}, {len(sent)} requests")
        ratios = []
        for place in range(rounds):
            ours, plain = search_rate(config), asyncio.run(plain_rate(sent, config.policy.batch_rows))
            ratios.append(ours / plain)
            print(f"round {place + 1}: search {ours:,.0f} tokens/s, plain client {plain:,.0f}, {ratios[-1]:.0%}")
        print(f"median {statistics.median(ratios):.0%}")


def _serve(ports: "multiprocessing.SimpleQueue[str]") -> None:
    from tests.dialects import Dialect, Manner

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    Dialect.request_queue_size = 4096
    with Dialect(Manner("vllm", spread_seconds=20.0)) as server:
        ports.put(server.address)
        server.serve_forever()


def many(in_flight: int) -> None:
    """Print what so many requests in flight take of this process."""
    from palmette.memory.host import resident_bytes
    from tests.served import backend_at, step

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ports: multiprocessing.SimpleQueue[str] = multiprocessing.SimpleQueue()
    server = multiprocessing.Process(target=_serve, args=(ports,), daemon=True)
    server.start()
    try:
        with backend_at(ports.get(), rows=in_flight) as backend:
            before, busy, begun = resident_bytes(), time.process_time(), time.monotonic()
            steps = [step(number, prefix=f"{number}?\n") for number in range(1, in_flight + 1)]
            backend.start(steps)
            done, peak = 0, 0
            while answered := backend.finished():
                done += len(answered)
                peak = max(peak, resident_bytes())
            seconds = time.monotonic() - begun
            cpu = time.process_time() - busy
        threads = 2  # This one, and the one with the event loop.
        print(
            f"{in_flight} requests in flight, {done} answered in {seconds:.1f} s: {(peak - before) / 2**20:.0f} MiB, "
            f"{cpu:.2f} s of a processor ({1000 * cpu / in_flight:.2f} ms a request), {threads} threads"
        )
    finally:
        server.terminate()
        server.join()


def main(words: Sequence[str] | None = None) -> None:
    """Run what the flags ask for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm", help="the Python that has vLLM")
    parser.add_argument("--sglang", help="the Python that has SGLang")
    parser.add_argument("--policy", default="seedling")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int)
    given = parser.parse_args(words)
    for engine in ("vllm", "sglang"):
        if python := getattr(given, engine):
            compare(engine, python, given.policy, given.questions, given.width, given.rounds)
    if given.in_flight:
        many(given.in_flight)


if __name__ == "__main__":
    main()
