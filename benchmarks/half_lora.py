"""An update of LoRA on a model in bfloat16: the adapter added in bfloat16, by PEFT's own code, and all in float32.

    python -m benchmarks.half_lora --model smollm2-135m --turns 2

Each measurement is a process of its own, and the ways take turns. Seconds are those of the gradients of all samples,
forward and backward, without the optimizer step: the smallest of several, on all threads. Peaks are of resident memory
above what the process held before. Gradients are compared with those in float32 from the same weights: the norm of the
difference over the norm.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.packed_update import group

WAYS = ("in bfloat16", "by PEFT", "in float32")


def measure(options: argparse.Namespace) -> None:
    """Print what one way took, and leave or compare its gradients."""
    import torch
    from safetensors.torch import load_file, save_file

    from palmette.memory.heap import map_large_blocks
    from palmette.memory.host import peak_bytes, reset_peak, resident_bytes
    from palmette.train.model_parts import train_lora
    from palmette.train.update.learner import Learner
    from palmette.zoo.load import load_policy

    map_large_blocks()
    torch.manual_seed(0)
    wide = options.way == "in float32"
    base = load_policy(options.model, dtype="bfloat16")[0]
    model = train_lora(base.float() if wide else base, rank=16)
    if options.way == "by PEFT":
        for module in model.modules():
            module.__dict__.pop("forward", None)
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # Zeros would let no gradient through to the first matrices.
            torch.nn.init.normal_(weight, std=0.01)
    rng = random.Random(0)
    samples = [one for _ in range(7) for one in group(rng, model.config.vocab_size, 120, 100, 1)]
    learner = Learner(model)
    seconds = []
    reset_peak()
    held = resident_bytes()
    for _ in range(options.updates):
        began = time.perf_counter()
        learner.accumulate(samples, micro_batch_tokens=2048)
        seconds.append(time.perf_counter() - began)
    peak = (peak_bytes() or 0) - held
    found = {name: weight.grad.float() for name, weight in model.named_parameters() if weight.grad is not None}
    apart, size = 0.0, 0.0
    if wide:
        save_file(found, options.kept)
    for name, plain in load_file(options.kept).items():
        apart += float((found[name] - plain).double().square().sum())
        size += float(plain.double().square().sum())
    sys.stdout.write(json.dumps({"seconds": min(seconds), "peak": peak, "difference": (apart / size) ** 0.5}) + "\n")


def main() -> None:
    """Measure all ways in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--updates", type=int, default=4, help="of each measurement")
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--kept", default="")
    options = parser.parse_args()
    if options.way is not None:
        measure(options)
        return
    from palmette.units import format_bytes

    told: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.turns):
            for way in reversed(WAYS):
                command = [sys.executable, "-m", "benchmarks.half_lora", "--model", options.model, "--way", way]
                command += ["--kept", str(Path(folder) / "wide.safetensors"), "--updates", str(options.updates)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                told[way].append(json.loads(done.stdout.splitlines()[-1]))
    sys.stdout.write(
        "| LoRA | seconds of each turn | peak | gradients' difference from float32 |\n|---|---|---:|---:|\n"
    )
    for way in WAYS:
        seconds = ", ".join(f"{one['seconds']:.1f}" for one in told[way])
        peak, difference = (max(one[name] for one in told[way]) for name in ("peak", "difference"))
        sys.stdout.write(f"| {way} | {seconds} | {format_bytes(int(peak))} | {difference:.3f} |\n")


if __name__ == "__main__":
    main()
