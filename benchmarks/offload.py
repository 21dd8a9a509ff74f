"""Resident memory and time of a frozen model's log-probabilities, held whole or streamed.

    python -m benchmarks.offload

Each way runs in a process of its own. The first pass of a process is not timed: it reads the file.
"""

import importlib
import json
import subprocess
import sys
import time
from contextlib import nullcontext

import torch

from benchmarks.peaks import peak_of_process
from palmette.memory.heap import map_large_blocks
from palmette.memory.host import resident_bytes
from palmette.memory.offload import streamed
from palmette.memory.offload_pages import MappedWeights
from palmette.train.samples import Sample
from palmette.train.update.reference import response_logprobs
from palmette.units import format_bytes
from palmette.zoo.load import load_policy

SAMPLES = [Sample(tuple(range(100, 164)), tuple(range(200, 392)), (1.0,) * 192)] * 2


def one_way(way: str) -> None:
    """Print what one way holds above its start, its CPU seconds and its results."""
    map_large_blocks()
    importlib.import_module("transformers.models.llama.modeling_llama")  # Code is no part of a model's memory.
    torch.ones(64, 64).matmul(torch.ones(64, 64))
    base = resident_bytes()
    model = load_policy("smollm2-135m")[0]
    loaded = resident_bytes() - base
    for _ in range(2):
        begun = time.process_time()
        with streamed(model, MappedWeights(model)) if way == "streamed" else nullcontext():
            values = response_logprobs(model, SAMPLES, micro_batch_tokens=1024)
        seconds = time.process_time() - begun
    peak = peak_of_process() - base
    print(
        json.dumps(
            {"loaded": loaded, "peak": peak, "after": resident_bytes() - base, "seconds": seconds, "values": values}
        )
    )


def main() -> None:
    """Print one line for each way, and whether their results are the same."""
    if len(sys.argv) > 1:
        one_way(sys.argv[1])
        return
    told = {}
    for way in ("whole", "streamed"):
        done = subprocess.run([sys.executable, "-m", "benchmarks.offload", way], check=True, stdout=subprocess.PIPE)
        told[way] = json.loads(done.stdout)
        held = ", ".join(f"{name} {format_bytes(told[way][name])}" for name in ("loaded", "peak", "after"))
        print(f"{way:9} above the process's start: {held}; {told[way]['seconds']:.1f} s")
    print("same values:", told["whole"]["values"] == told["streamed"]["values"])


if __name__ == "__main__":
    main()
