"""Gradients of an update with shared prefixes computed once, against every sample computed as a row of its own.

    python -m benchmarks.packed_update --model smollm2-135m --turns 2

Each measurement is a process of its own, and the ways take turns. Seconds are CPU seconds of the gradients of all
samples, forward and backward, without the optimizer step; peaks are of resident memory above what the process held
before. Gradients are compared with those of the rows: the norm of the difference over the norm. A star marks the way
that `auto` chooses.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODES = ("off", "packed", "depth_first")
HEAD = (
    "| samples | tokens | distinct | shared | way | CPU s | times faster | peak | difference |\n"
    "|---|---:|---:|---:|---|---:|---:|---:|---:|"
)


def tokens(rng: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    """Return random tokens."""
    return tuple(rng.randrange(vocabulary) for _ in range(count))


def group(rng: random.Random, vocabulary: int, prompt: int, response: int, size: int = 16) -> Iterator[Any]:
    """Yield the responses to one prompt."""
    from palmette.train.samples import Sample

    start = tokens(rng, prompt, vocabulary)
    for _ in range(size):
        yield Sample(start, tokens(rng, response, vocabulary), (rng.gauss(0, 1),) * response, "group")


def tree(rng: random.Random, vocabulary: int, prompt: int, step: int, branches: tuple[int, ...]) -> Iterator[Any]:
    """Yield the steps of a tree, each with all above it as its prompt."""
    from palmette.train.samples import Sample

    paths = [tokens(rng, prompt, vocabulary)]
    for width in branches:
        below = []
        for path in paths:
            for _ in range(width):
                response = tokens(rng, step, vocabulary)
                yield Sample(path, response, (rng.gauss(0, 1),) * step, "tree")
                below.append(path + response)
        paths = below


def cases(vocabulary: int) -> dict[str, list[Any]]:
    """Return the samples of each case."""
    rng = random.Random(0)
    return {
        "a tree of width 64: steps of 12 tokens, 4 x 4 x 4 branches": list(tree(rng, vocabulary, 40, 12, (4, 4, 4))),
        "16 responses of 64 to a prompt of 188 tokens": list(group(rng, vocabulary, 188, 64)),
        "16 responses of 50 to a prompt of 350 tokens": list(group(rng, vocabulary, 350, 50)),
        "6 prompts of 64, a response of 96 to each": [
            sample for _ in range(6) for sample in group(rng, vocabulary, 64, 96, 1)
        ],
    }


def measure(options: argparse.Namespace) -> None:
    """Print what one way took for one case, and leave or compare its gradients."""
    import torch

    from palmette.memory.heap import map_large_blocks
    from palmette.memory.host import peak_bytes, reset_peak, resident_bytes
    from palmette.train.model_parts import train_all
    from palmette.train.update.learner import Learner, Savings
    from palmette.zoo.load import load_policy

    map_large_blocks()
    model = train_all(load_policy(options.model)[0].float())
    samples = list(cases(model.config.vocab_size).values())[options.case]
    learner = Learner(model, sharing=options.mode, savings=Savings(checkpointing=options.checkpointing))
    reset_peak()
    held, began = resident_bytes(), time.process_time()
    learner.accumulate(samples, micro_batch_tokens=options.tokens)
    seconds = time.process_time() - began
    peak = (peak_bytes() or 0) - held
    apart, size = 0.0, 0.0
    kept = Path(options.kept)
    found = {name: weight.grad for name, weight in model.named_parameters()}
    if options.mode == "off":
        torch.save(found, kept)
    else:
        for name, plain in torch.load(kept, mmap=True).items():
            apart += float((found[name] - plain).double().square().sum())
            size += float(plain.double().square().sum())
    difference = (apart / size) ** 0.5 if size else 0.0
    sys.stdout.write(json.dumps({"seconds": seconds, "peak": peak, "difference": difference}) + "\n")


def main() -> None:
    """Measure all cases in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=1024, help="held at a time")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    parser.add_argument("--case", type=int)
    parser.add_argument("--mode", default="off")
    parser.add_argument("--kept", default="")
    options = parser.parse_args()
    if options.case is not None:
        measure(options)
        return
    from palmette.train.packed.passes import distinct_tokens
    from palmette.train.packed.sharing import batches_of
    from palmette.units import format_bytes

    sys.stdout.write(HEAD + "\n")
    for number, (name, samples) in enumerate(cases(49_152).items()):
        if options.only and number not in options.only:
            continue
        fed, distinct = sum(sample.fed_tokens for sample in samples), distinct_tokens(samples)
        told: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.turns):
                for mode in MODES:
                    command = [sys.executable, "-m", "benchmarks.packed_update", "--model", options.model]
                    command += ["--case", str(number), "--mode", mode, "--kept", str(Path(folder) / "rows.pt")]
                    command += ["--tokens", str(options.tokens)] + ["--checkpointing"] * options.checkpointing
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    told[mode].append(json.loads(done.stdout.splitlines()[-1]))
        chosen = batches_of(samples, options.tokens, "auto").mode
        plain = statistics.median(one["seconds"] for one in told["off"])
        for mode in MODES:
            seconds = statistics.median(one["seconds"] for one in told[mode])
            peak = max(one["peak"] for one in told[mode])
            difference = max(one["difference"] for one in told[mode])
            way = f"{mode}*" if mode == chosen else mode
            sys.stdout.write(
                f"| {name} | {fed:,} | {distinct:,} | {1 - distinct / fed:.0%} | {way} | {seconds:.1f} | "
                f"{plain / seconds:.2f} | {format_bytes(int(peak))} | {difference:.0e} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
