"""Ranks that train a Llama, against the same updates in one process: memory of a rank, seconds, how far weights differ.

    python -m benchmarks.scale_train --ranks 1,2,4

Planned for a rank is its share of weights, gradients and AdamW's two moments; measured is what its process holds before
the optimizer step more than before it has loaded anything. Every rank has one thread: on fewer cores than ranks they
take turns, and seconds say what ranks cost, not what they gain.
"""

import argparse
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from palmette.scale.learning.local_ranks import LocalRanks
from palmette.scale.learning.ranks_learner import RanksLearner
from palmette.scale.learning.sharded_learner import ShardedLearner
from palmette.train.model_parts import train_all
from palmette.train.samples import Sample
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.optimizer import AdamSettings
from palmette.units import format_bytes

ADAM = AdamSettings(learning_rate=1e-5)
SAVINGS = Savings(checkpointing=True)


def make_model(folder: Path, layers: int) -> None:
    """Write a Llama with random weights, 3.9 M in each layer and 8.4 M in its embedding."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16_384,
        hidden_size=512,
        intermediate_size=1792,
        num_hidden_layers=layers,
        num_attention_heads=8,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def load(folder: Path) -> Any:
    """Return the model, all of it trainable."""
    return train_all(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


def build(folder: Path, mesh: DeviceMesh) -> ShardedLearner:
    """Return the learner of a rank."""
    return ShardedLearner(load(folder), mesh, adam=ADAM, savings=SAVINGS)


def samples(update: int) -> list[Sample]:
    """Return 8 responses of 4 to 12 tokens to prompts of 4."""
    rng = random.Random(update)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(16_384) for _ in range(count))

    lengths = [rng.randint(4, 12) for _ in range(8)]
    return [Sample(tokens(4), tokens(length), (rng.gauss(0, 1),) * length) for length in lengths]


def furthest(one: Any, other: Any) -> float:
    """Return the largest difference of two models' weights, in parts of a tensor's largest weight."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((mine - theirs).detach().abs().max() / theirs.detach().abs().max()) for mine, theirs in pairs)


def main() -> None:
    """Measure, and print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--micro-batch-tokens", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_model(folder, options.layers)
        plain = Learner(load(folder), adam=ADAM, savings=SAVINGS, sharing="off")
        begun = time.monotonic()
        for update in range(options.updates):
            plain.update(samples(update), micro_batch_tokens=options.micro_batch_tokens)
        seconds = (time.monotonic() - begun) / options.updates
        weights = sum(weight.nbytes for weight in plain.model.parameters())
        told = f"{weights // 4 / 1e6:.1f} M weights in float32, {format_bytes(weights)}"
        print(f"{told}; in one process {seconds:.2f} s an update", flush=True)
        for count in map(int, options.ranks.split(",")):
            model = load(folder)
            ranks = LocalRanks(count, threads=1, device="cpu", start_seconds=600, answer_seconds=3600)
            try:
                learner = RanksLearner(ranks, partial(build, folder), dict(model.named_parameters()))
                begun = time.monotonic()
                for update in range(options.updates):
                    learner.update(samples(update), micro_batch_tokens=options.micro_batch_tokens)
                seconds = (time.monotonic() - begun) / options.updates
                begun = time.monotonic()
                learner.fetch()
                fetched = time.monotonic() - begun
                held = learner.memory()
            finally:
                ranks.close()
            planned = 4 * weights / count
            measured = [rank["measured"] / planned for rank in held]
            counted = [(rank["weights"] + rank["gradients"] + rank["optimizer"]) / planned for rank in held]
            print(
                f"{count} ranks: planned {format_bytes(int(planned))} a rank, tensors {min(counted):.3f} to "
                f"{max(counted):.3f} of it, measured {min(measured):.3f} to {max(measured):.3f}; {seconds:.2f} s an "
                f"update, weights here in {fetched:.2f} s; furthest weight {furthest(model, plain.model):.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
