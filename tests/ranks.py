"""Ranks of tests: processes that train a small model, and the same updates in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from palmette.scale.learning.local_ranks import LocalRanks
from palmette.scale.learning.ranks_learner import RanksLearner
from palmette.scale.learning.sharded_learner import ShardedLearner
from palmette.train.checkpoints.shard_files import FOLDER, read_part, read_shards
from palmette.train.model_parts import train_all, train_lora
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.loss import LossSettings
from palmette.train.update.optimizer import AdamSettings
from palmette.zoo.load import load_policy

LOSS = LossSettings(clip_low=0.1, clip_high=0.3, kl_weight=0.05, entropy_weight=0.02)
ADAM = AdamSettings(learning_rate=1e-4, weight_decay=0.1, max_norm=0.5)
TEMPERATURE = 0.9


def trained_seedling(method: str) -> Any:
    """The shipped model with all its weights trainable, or with an adapter that begins the same each time.

    `zero` is an adapter as training begins it, with one half zeros; `zero64` and `full64` are in float64.
    """
    dtype = torch.float64 if method.endswith("64") else torch.float32
    model: Any = load_policy("seedling")[0]
    model.to(dtype)
    if method.startswith("full"):
        return train_all(model)
    torch.manual_seed(0)
    adapted = train_lora(model, rank=4).to(dtype)
    if method.startswith("zero"):
        return adapted
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:  # Zeros: as they are, one half of the adapter has no gradient in the first update.
            torch.nn.init.normal_(weight, std=0.05)
    return adapted


def plain_learner(method: str, adam: AdamSettings = ADAM) -> Learner:
    return Learner(trained_seedling(method), loss=LOSS, adam=adam, temperature=TEMPERATURE, sharing="off")


def build(method: str, checkpoint: Path | None, mesh: DeviceMesh) -> ShardedLearner:
    model = trained_seedling(method)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    savings = Savings(checkpointing=True)
    learner = ShardedLearner(model, mesh, loss=LOSS, adam=ADAM, temperature=TEMPERATURE, savings=savings)
    if checkpoint is not None:
        with torch.no_grad():
            if (checkpoint / FOLDER).is_dir():
                read_shards(checkpoint / FOLDER, learner.shards())
            else:
                read_part(checkpoint / "state", learner.shards(), part=mesh.get_rank(), parts=mesh.size())
    return learner


def load_weights(model: Any, checkpoint: Path) -> None:
    from safetensors.torch import load_file

    with torch.no_grad():
        for name, value in load_file(checkpoint / "weights").items():
            model.get_parameter(name).copy_(value)


def save_weights(model: Any, checkpoint: Path) -> None:
    from safetensors.torch import save_file

    checkpoint.mkdir(exist_ok=True)
    save_file(trained(model), checkpoint / "weights")


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


@contextmanager
def ranks_learner(
    count: int, method: str = "full", checkpoint: Path | None = None, answer_seconds: float = 600.0
) -> Iterator[tuple[RanksLearner, Any, LocalRanks]]:
    """Ranks that train, the model of this process that their weights are fetched into, and their processes."""
    model = trained_seedling(method)
    ranks = LocalRanks(count, threads=1, device="cpu", start_seconds=600.0, answer_seconds=answer_seconds)
    try:
        yield RanksLearner(ranks, partial(build, method, checkpoint), trained(model)), model, ranks
    finally:
        ranks.close()


def furthest(one: Any, other: Any) -> float:
    """The largest difference between weights of two models, in parts of the largest weight of the tensor."""
    others = trained(other)
    return max(
        float((weight - others[name]).abs().max() / others[name].abs().max()) for name, weight in trained(one).items()
    )
