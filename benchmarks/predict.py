"""Predicted against measured peaks of an update on the CPU. `python -m benchmarks.predict`.

Each update runs in processes of its own: with glibc's heap as it comes, with large blocks mapped, and with
`--count` once more with every real tensor counted. Base is what the
process held when the model's file was mapped and hardly a page of it read.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import torch

from benchmarks.peaks import peak_of_process
from palmette.memory.heap import map_large_blocks
from palmette.memory.host import resident_bytes
from palmette.memory.tracker import WEIGHTS, Tracker
from palmette.train.model_parts import train_all, train_lora
from palmette.train.update.fake_update import UpdateShape, predict_update
from palmette.train.update.learner import Learner, Savings
from palmette.units import format_bytes
from palmette.zoo.load import load_policy


def measure(model_name: str, shape: UpdateShape, *, mapped: bool, tracked: bool) -> dict[str, float]:
    """Make two real updates; return base, resident peak, CPU seconds and, where asked, the peak of counted tensors."""
    if mapped:
        assert map_large_blocks()
    if shape.lora_rank is not None:
        importlib.import_module("peft")
    torch.ones(64, 64, requires_grad=True).matmul(torch.ones(64, 64)).sum().backward()  # The libraries' own start.
    model: Any = load_policy(model_name)[0]
    base = resident_bytes()
    model = train_all(model) if shape.lora_rank is None else train_lora(model, rank=shape.lora_rank)
    tracker = Tracker()
    tracker.track([*model.parameters(), *model.buffers()], WEIGHTS)
    with ExitStack() as stack:
        if tracked:
            stack.enter_context(tracker)
        learner = Learner(model, loss=shape.loss, savings=shape.savings, sharing="off")
        begun = time.process_time()
        for _ in range(2):
            learner.update(shape.samples(), micro_batch_tokens=shape.micro_batch_tokens)
        seconds = time.process_time() - begun
    peak = peak_of_process()
    return {"base": base, "resident": peak, "seconds": seconds, "tracked": tracker.peak_bytes}


def cases(models: list[str]) -> list[tuple[str, UpdateShape]]:
    """Return what is compared: models x full and LoRA x checkpointing x two micro-batches."""
    rows = {"seedling": (16, 64), "smollm2-135m": (2, 6)}
    return [
        (model, UpdateShape(count, 64, 192, 2, lora_rank, Savings(checkpointing)))
        for model in models
        for lora_rank in (None, 16)
        for checkpointing in (False, True)
        for count in rows[model]
    ]


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["seedling", "smollm2-135m"])
    parser.add_argument("--case", type=int)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the cases to run")
    options = parser.parse_args()
    chosen = cases(options.models)
    if options.case is not None:
        print(json.dumps(measure(*chosen[options.case], mapped=options.mapped, tracked=options.count)))
        return
    print("model | trained | checkpointing | rows | base | predicted | counted | heap: resident, s | "
          "mapped: resident, s | (base + predicted) / mapped")  # fmt: skip
    for place, (name, shape) in enumerate(chosen):
        if options.only and place not in options.only:
            continue
        own = [sys.executable, "-m", "benchmarks.predict", "--models", *options.models, "--case", str(place)]
        heap, mapped, counted = (
            json.loads(subprocess.run([*own, *flags], check=True, stdout=subprocess.PIPE).stdout) if wanted else {}
            for flags, wanted in (([], True), (["--mapped"], True), (["--count"], options.count))
        )
        predicted = predict_update(load_policy(name)[0].config, shape).peak_bytes
        print(
            name, "LoRA" if shape.lora_rank else "full", shape.savings.checkpointing, shape.rows,
            format_bytes(mapped["base"]), format_bytes(predicted),
            format_bytes(counted["tracked"]) if options.count else "-",
            *(f"{format_bytes(run['resident'])}, {run['seconds']:.1f}" for run in (heap, mapped)),
            f"{(mapped['base'] + predicted) / mapped['resident']:.3f}", sep=" | ", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
