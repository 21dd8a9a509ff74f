"""The learner of a run with ranks: started for a policy, and what each rank builds of the config."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from palmette.run.trained_model import TrainedModel
from palmette.run.training_checks import algorithm_of
from palmette.scale.learning.local_ranks import LocalRanks
from palmette.scale.learning.ranks import Ranks
from palmette.scale.learning.ranks_learner import RanksLearner
from palmette.scale.learning.sharded_learner import ShardedLearner
from palmette.scale_settings import ScaleSettings
from palmette.settings import Config
from palmette.train.checkpoints.shard_files import FOLDER, read_part, read_shards
from palmette.train.checkpoints.store import TRAINING_FILE, Checkpoint
from palmette.train.update.learner import VALUE_HEAD
from palmette.units import parse_bytes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LOGS = "ranks"
"""The folder of a run in which local ranks write what they print."""


def start_learner(
    config: Config, checkpoint: Checkpoint | None, model: Any, value_head: nn.Module | None, folder: Path, threads: int
) -> RanksLearner:
    """Start `scale.ranks` ranks that go on from a checkpoint. `model` and `value_head` are those of this process.

    Raises ConfigError, BackendError or RankLostError if they do not start, with none of them left.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if value_head is not None:
        weights |= {f"{VALUE_HEAD}{name}": weight for name, weight in value_head.named_parameters()}
    notes = []
    if config.train.sharing != "off":
        notes.append("ranks compute every sample as a row of its own: prefixes that samples share are not shared")
    ranks = _start(config, str(model.device), folder, threads)
    try:
        return RanksLearner(ranks, partial(build_learner, config, checkpoint), weights, notes)
    except BaseException:
        ranks.close()
        raise


def _start(config: Config, device: str, folder: Path, threads: int) -> Ranks:
    scale = config.scale
    assert scale.ranks is not None
    if scale.address is not None:
        return _start_on_cluster(scale, on_gpus=device.startswith("cuda"))

    logs = folder / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    return LocalRanks(
        scale.ranks,
        threads=max(1, threads // scale.ranks),
        device=device,
        start_seconds=scale.start_seconds,
        answer_seconds=scale.answer_seconds,
        logs=logs,
    )


def _start_on_cluster(scale: ScaleSettings, *, on_gpus: bool) -> Ranks:
    from palmette.scale.connect import connected
    from palmette.scale.learning.ray_ranks import RankDemand, RayRanks

    assert scale.ranks is not None
    cpus = scale.worker_cpus or 1.0
    memory_bytes = 0 if scale.worker_memory is None else parse_bytes(scale.worker_memory)
    demand = RankDemand(cpus, scale.worker_gpus or float(on_gpus), memory_bytes)
    with ExitStack() as stack:
        ray = stack.enter_context(connected(scale, cpus * scale.ranks))
        return RayRanks(
            ray,
            scale.ranks,
            demand,
            threads=max(1, int(cpus)),
            start_seconds=scale.start_seconds,
            answer_seconds=scale.answer_seconds,
            stack=stack.pop_all(),
        )


def build_learner(config: Config, checkpoint: Checkpoint | None, mesh: "DeviceMesh") -> ShardedLearner:
    """Return the learner of this rank, in the state of the checkpoint. Called in the process of the rank.

    The model is loaded to host memory, as pages of its file where that has the dtype, and its shards are taken from
    there: no device holds more than one whole layer of it.
    """
    local = config.model_copy(update={"policy": config.policy.model_copy(update={"device": "cpu"})})
    model = TrainedModel(local, checkpoint)
    algorithm = algorithm_of(config)
    if algorithm.critic:
        model.add_value_head()
    settings = model.learner_settings()
    learner = ShardedLearner(
        model.trained,
        mesh,
        loss=algorithm.loss(),
        policy_loss=algorithm.token_losses,
        adam=settings.adam,
        savings=settings.savings,
        temperature=config.policy.temperature,
        value_head=model.value_head,
    )
    if checkpoint is not None:
        _load(learner, checkpoint.folder, mesh)
    return learner


@torch.no_grad()
def _load(learner: ShardedLearner, folder: Path, mesh: "DeviceMesh") -> None:
    """Load what next updates depend on: written by ranks, however many, or by a learner in one process."""
    state = learner.shards()
    if (folder / FOLDER).is_dir():
        read_shards(folder / FOLDER, state)
    else:
        read_part(folder / TRAINING_FILE, state, part=mesh.get_rank(), parts=mesh.size())
