"""Many clients at once on `palmette serve`, with random cancels, a kill -9 in the middle and a restart.

Every request has a seed, and its answer is compared with the one that it got alone: nothing else may change it. At the
end no KV token may be held. Resident memory is drawn over time.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from palmette.api import load_task

MODELS = ("seedling", "seedling:rebase", "seedling:ets", "seedling:best-of-n", "seedling:beam", "seedling:espalier")
Case = tuple[str, str, int]
"""Model, question, seed."""


@dataclass
class Seen:
    """What the clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Seconds to the first text of each stream."""
    resident: list[tuple[float, float]] = field(default_factory=list)
    """Moments and MiB."""
    killed: float = 0.0
    """When the gateway was killed."""


class Server:
    """`palmette serve` as a process of its own."""

    def __init__(self, port: int, arguments: list[str], log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "palmette", "serve", "--port", str(port), "--policy", "seedling"]
        settings = ["--set", "search.lambda_diversity=0", "--set", "search.total_tokens=96"]
        self._command = [*command, *settings, *arguments]
        self._log = log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self._command, stderr=log, stdout=log)
        async with httpx2.AsyncClient(timeout=60) as client:
            while True:
                if self.process.returncode is not None:
                    raise SystemExit(f"the gateway ended with {self.process.returncode}: see {self._log}")
                try:
                    await client.get(f"{self.url}/health")
                    return
                except httpx2.TransportError:
                    await asyncio.sleep(0.2)

    async def stop(self, number: signal.Signals) -> int:
        """End it and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()

    def resident_mib(self) -> float:
        """Return what it holds."""
        assert self.process is not None
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        if found is None:
            raise ProcessLookupError("it is being ended")
        return int(found[1]) / 1024


async def answer(
    client: httpx2.AsyncClient, url: str, case: Case, seen: Seen | None, random: Random | None
) -> str | None:
    """Ask one case and return its answer. With `random` some are cancelled in the middle; these return None."""
    model, question, seed = case
    body = {"model": model, "messages": [{"role": "user", "content": question}], "seed": seed}
    begun = time.monotonic()
    if random is None or random.random() < 0.4:
        reply = await client.post(f"{url}/v1/chat/completions", json=body)
        reply.raise_for_status()
        return str(reply.json()["choices"][0]["message"]["content"])
    cancelled = random.random() < 0.4
    most = random.randrange(1, 5)
    content = ""
    async with client.stream("POST", f"{url}/v1/chat/completions", json={**body, "stream": True}) as stream:
        if stream.status_code != 200:
            await stream.aread()
            stream.raise_for_status()
        count = 0
        async for line in stream.aiter_lines():
            if not line.startswith("data: {"):
                continue
            delta = _delta(line)
            if seen is not None and count == 1:
                seen.first.append(time.monotonic() - begun)
            count += 1
            content += delta
            if cancelled and count >= most:
                return None
    return content


def _delta(line: str) -> str:
    values: Any = json.loads(line[6:])
    if "error" in values:
        raise RuntimeError(values["error"]["message"])
    choices = values["choices"]
    return str(choices[0]["delta"].get("content") or "") if choices else ""


async def client_loop(url: str, cases: dict[Case, str], seen: Seen, random: Random, until: float) -> None:
    """Ask one case after another until the time is over; come again when told so."""
    names = list(cases)
    async with httpx2.AsyncClient(timeout=600) as client:
        waited = False
        while time.monotonic() < until:
            case = random.choice(names)
            try:
                found = await answer(client, url, case, seen, random)
            except httpx2.HTTPStatusError as error:
                status = error.response.status_code
                seen.counts[f"status {status}"] += 1
                if status == 429:
                    seen.counts["429 again after waiting"] += waited
                    waited = True
                    await asyncio.sleep(int(error.response.headers["retry-after"]))
                continue
            except httpx2.TransportError:
                seen.counts["connection lost"] += 1
                await asyncio.sleep(0.5)
                continue
            seen.counts["served after waiting"] += waited
            waited = False
            seen.counts["cancelled" if found is None else "answered"] += 1
            if found is not None and found != cases[case]:
                seen.wrong.append(f"{case}: {found!r}, alone {cases[case]!r}")


def watch(server: Server, seen: Seen, begun: float, is_over: threading.Event) -> None:
    """Read resident memory twice a second, in a thread of its own: what clients do does not hold it up."""
    while not is_over.wait(0.5):
        try:
            seen.resident.append((time.monotonic() - begun, server.resident_mib()))
        except OSError:  # Killed, and not yet started again.
            pass


async def soak(arguments: argparse.Namespace) -> Seen:
    """Run the clients, kill the gateway in the middle, start it again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(port, ["--kv", arguments.kv, "--searches", str(arguments.searches)], arguments.log)
    random, seen = Random(16), Seen()
    await server.start()
    questions = [question.messages[-1]["content"] for question in load_task("ladder", questions=12).questions]
    asked = [(random.choice(MODELS), question, random.randrange(1000)) for question in questions]
    async with httpx2.AsyncClient(timeout=600) as client:
        cases = {case: await answer(client, server.url, case, None, None) or "" for case in asked}
    print(f"{len(cases)} requests answered alone", flush=True)
    half, begun, is_over = arguments.seconds / 2, time.monotonic(), threading.Event()
    watcher = threading.Thread(target=watch, args=(server, seen, begun, is_over))
    watcher.start()
    for part in range(2):
        until = time.monotonic() + half
        clients = [
            client_loop(server.url, cases, seen, Random(100 * part + number), until)
            for number in range(arguments.clients)
        ]
        running = asyncio.gather(*clients)
        if part == 0:
            await asyncio.sleep(half - 3)
            await server.stop(signal.SIGKILL)  # In the middle of requests.
            seen.killed = time.monotonic() - begun
            await server.start()
        await running
    is_over.set()
    watcher.join()
    async with httpx2.AsyncClient(timeout=600) as client:
        while "palmette_searches_running 0.0" not in (page := (await client.get(f"{server.url}/metrics")).text):
            await asyncio.sleep(0.2)
        again = [await answer(client, server.url, case, None, None) == found for case, found in cases.items()]
    held = re.findall(r"^palmette_kv_tokens_(?:held|promised) (.+)$", page, re.MULTILINE)
    print(f"the same answers afterwards: {sum(again)} of {len(again)}; KV tokens held, promised: {', '.join(held)}")
    print(f"exit code after SIGTERM: {await server.stop(signal.SIGTERM)}")
    return seen


def lives(seen: Seen) -> list[list[tuple[float, float]]]:
    """Return what was read of the gateway before it was killed, and of the one after it."""
    first = [(moment, mib) for moment, mib in seen.resident if moment < seen.killed]
    return [first, [(moment, mib) for moment, mib in seen.resident if moment > seen.killed]]


def told_memory(seen: Seen) -> None:
    """Print what both gateways held a minute after they had begun to serve, and at their end."""
    for name, part in zip(("the first gateway", "the second"), lives(seen), strict=True):
        high = max(mib for _, mib in part)
        served = [moment for moment, mib in part if mib > 0.9 * high]
        late = [(moment, mib) for moment, mib in part if moment > min(served[0] + 60, served[-1] - 5)]
        tenth = len(late) // 10 + 1
        begin, end = (statistics.median(mib for _, mib in some) for some in (late[:tenth], late[-tenth:]))
        gap = max((b - a for (a, _), (b, _) in itertools.pairwise(part)), default=0.0)
        print(
            f"resident MiB of {name}: {begin:.0f} after a minute, {end:.0f} at its end "
            f"{late[-1][0] - late[0][0]:.0f} s later, {high:.0f} at the most; longest time between readings {gap:.1f} s"
        )


def plot(seen: Seen, path: Path) -> None:
    """Draw resident memory over time as SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 2.6), layout="constrained")
    for part in lives(seen):
        axes.plot(*zip(*part, strict=True), color="#1f7a4d", linewidth=1.2)
    axes.axvline(seen.killed, color="#b4452c", linewidth=1, linestyle=":")
    axes.text(seen.killed, 10, " kill -9, started again", color="#b4452c", fontsize=8)
    axes.set(xlabel="seconds", ylabel="resident MiB", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    """Run the soak and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument(
        "--searches", type=int, default=12, help="searches at a time: fewer than clients, so that some wait"
    )
    parser.add_argument("--kv", default="64MiB")
    parser.add_argument("--plot", type=Path, default=Path("gateway-memory.svg"))
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    arguments = parser.parse_args()
    seen = asyncio.run(soak(arguments))
    for name, count in sorted(seen.counts.items()):
        print(f"{name:28} {count}")
    if seen.first:
        ordered = sorted(seen.first)
        high = ordered[int(0.95 * (len(ordered) - 1))]
        print(
            f"first reasoning text of a stream, time in line included: median {statistics.median(ordered):.2f} s, 95% "
            f"{high:.2f} s, of {len(ordered)}"
        )
    told_memory(seen)
    plot(seen, arguments.plot)
    print("\n".join([f"WRONG {line}" for line in seen.wrong] or ["no wrong answer"]))
    sys.exit(1 if seen.wrong else 0)


if __name__ == "__main__":
    main()
