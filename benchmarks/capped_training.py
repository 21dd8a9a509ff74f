"""A training run whose memory is cut in mid-run, against one with all memory there is.

    python -m benchmarks.capped_training OUT --share 0.5 --set train.kl_weight=0.02

Each run is a process of its own, which is told that its device has just what its plan asks for: freed blocks then go
back to the system at once. After its first update the address space of one of them is limited to what it has mapped
then, and a share of what the updates of the other held beyond what it held then. Both have to end with the same
weights.
"""

import argparse
import json
import resource
import time
from functools import partial
from pathlib import Path
from typing import Any

import palmette.backends.local
import palmette.run.training_policy  # noqa: F401 - imported before the forks, once for both runs
from benchmarks.fork import done_in_a_fork
from benchmarks.peaks import phases_of_run
from benchmarks.train_plan import least_device
from palmette.config import load_config
from palmette.event_log import read_events
from palmette.events import OomRetry, UpdateDone
from palmette.memory.host import mapped_bytes, resident_bytes
from palmette.run.train import TrainingRun
from palmette.settings import Config
from palmette.units import format_bytes
from palmette.yaml_file import parse_override

SETTINGS: dict[str, Any] = {
    "task.grade": 3, "task.questions": 100, "search.width": 16, "search.total_tokens": 120, "train.questions": 4,
    "train.updates": 3, "train.learning_rate": 1.0e-5, "train.entropy_weight": 0.05, "train.checkpoint_every": 100,
    "train.gradient_checkpointing": False, "train.micro_batch_tokens": 4096, "memory.prompt_tokens": 32,
}  # fmt: skip
HEAD = (
    "| memory for updates | retries (guard, size that failed) | CPU s | largest difference, of the largest "
    "weight |\n|---:|---|---:|---:|"
)
CUT_AFTER = 1
"""Updates before memory is cut."""


def train(config: Config, folder: Path, allowed_bytes: int | None) -> None:
    """Train into a folder; with `allowed_bytes` the address space may grow by so much after `CUT_AFTER` updates."""
    folder.mkdir(parents=True)
    resident = 0
    begun = time.process_time()
    with TrainingRun(config, folder) as training:
        for event in training.updates():
            if isinstance(event, UpdateDone) and event.update == CUT_AFTER:
                resident = resident_bytes()
                if allowed_bytes is not None:
                    limit = (mapped_bytes() or 0) + allowed_bytes
                    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    peak = next(phase.peak_bytes for phase in phases_of_run(folder) if phase.name == "update")
    told = {"taken_bytes": peak - resident, "seconds": time.process_time() - begun}
    folder.joinpath("told.json").write_text(json.dumps(told), encoding="ascii")


def in_a_fork(config: Config, folder: Path, allowed_bytes: int | None = None) -> dict[str, Any] | None:
    """Train in a process of its own; return what it told, None if it failed."""
    is_done = done_in_a_fork(partial(train, config, folder, allowed_bytes))
    return dict(json.loads(folder.joinpath("told.json").read_text(encoding="ascii"))) if is_done else None


def largest_difference(ours: Path, theirs: Path, update: int) -> float:
    """Return the largest difference of two runs' weights, as a share of the largest weight of its tensor."""
    from safetensors.torch import load_file

    name = f"checkpoints/update-{update:08d}"
    file = next(path.name for path in (theirs / name).glob("*model.safetensors"))
    mine, other = (load_file(run / name / file) for run in (ours, theirs))
    return max(float((mine[key] - other[key]).abs().max() / other[key].abs().max()) for key in other)


def row(folder: Path, told: dict[str, Any], allowed_bytes: int | None, difference: str) -> str:
    """Return a row of the table."""
    retries = [event for event in read_events(folder) if isinstance(event, OomRetry)]
    shown = ", ".join(f"{event.guard} {event.tried}" for event in retries)
    size = format_bytes(told["taken_bytes"] if allowed_bytes is None else allowed_bytes)
    return (
        f"| {size}{' (no limit)' if allowed_bytes is None else ''} | {shown} | {told['seconds']:.1f} | {difference} |"
    )


def main() -> None:
    """Train twice; print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of both runs")
    options = parser.parse_args()
    settings = {**SETTINGS, **dict(map(parse_override, options.set))}
    config = load_config(None, {"memory.devices": least_device(settings), **settings})
    free = in_a_fork(config, options.out / "free")
    assert free is not None
    allowed = int(options.share * free["taken_bytes"])
    capped = in_a_fork(config, options.out / "capped", allowed)
    print(HEAD)
    print(row(options.out / "free", free, None, ""))
    if capped is None:
        raise SystemExit(f"| {format_bytes(allowed)} | | | ended |")
    difference = largest_difference(options.out / "capped", options.out / "free", config.train.updates)
    print(row(options.out / "capped", capped, allowed, f"{difference:.0e}"))


if __name__ == "__main__":
    main()
