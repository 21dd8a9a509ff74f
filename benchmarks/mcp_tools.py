"""Milliseconds of every MCP tool, through the SDK's client over stdio: median and 95th percentile after a first call.

python -m benchmarks.mcp_tools --calls 40
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.agent_calls import CALLS, make_run

PLANS = ("build_plan", "review_plan", "estimate_memory", "diagnose_failure", "explain_run", "propose_hypothesis")
"""Tools that plan memory."""

TORCH = """
def advantages(rewards, num_generations):
    grouped = rewards.view(-1, num_generations)
    return (grouped - grouped.mean(1, keepdim=True)).flatten()
"""


async def measure(root: Path, calls: int) -> dict[str, list[float]]:
    """Return the seconds of each call by tool."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = ["-m", "palmette", "mcp", "--root", str(root), "--allow-runs"]
    asked = {**{name: (name, call) for name, (call, _) in CALLS.items()}}
    asked["verify_code_math, torch"] = (
        "verify_code_math",
        {"code_snippet": TORCH, "concept_name": "dr grpo advantage"},
    )
    found: dict[str, list[float]] = {}
    async with Client(StdioServerParameters(command=sys.executable, args=arguments, env=environment)) as client:
        for shown, (name, call) in asked.items():
            await client.call_tool(name, call)
            for _ in range(calls):
                began = time.perf_counter()
                await client.call_tool(name, call)
                found.setdefault(shown, []).append(time.perf_counter() - began)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=40)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder))
        found = asyncio.run(measure(Path(folder), calls))
    print("| tool | plans | median ms | 95% ms |\n|---|---|---:|---:|")
    for name, seconds in found.items():
        high = statistics.quantiles(seconds, n=20)[-1]
        print(
            f"| {name} | {'yes' if name in PLANS else ''} | {statistics.median(seconds) * 1e3:.0f} | {high * 1e3:.0f} |"
        )


if __name__ == "__main__":
    main()
