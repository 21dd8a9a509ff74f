"""Two updates with all memory there is, then with less than they take.

    python -m benchmarks.capped_update OUT --shares 0.6 0.3

Weights, gradients and optimizer state cannot be split: shares are of what the unlimited updates took beside them. Each
run is a process of its own, whose address space is limited once its model is loaded. Every limited run is repeated
without a limit, in the pieces that the guard ended with: its weights have to be the same to the last bit.
"""

import argparse
import json
import random
import resource
import time
import traceback
from collections.abc import Hashable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.fork import done_in_a_fork
from palmette.event_log import EventLog, read_events
from palmette.events import OomRetry
from palmette.memory.guard import RunPieces, guard_with_meter
from palmette.memory.host import mapped_bytes
from palmette.memory.meter import Meter
from palmette.train.model_parts import train_all
from palmette.train.samples import Sample
from palmette.train.update.learner import GuardedLearner, Learner
from palmette.train.update.loss import LossSettings
from palmette.train.update.optimizer import AdamSettings
from palmette.units import format_bytes
from palmette.zoo.load import load_policy

Groups = list[list[Hashable]]
"""The groups of each piece's samples, piece by piece."""

HEAD = (
    "| memory beside the model | retries (tokens that failed) | in a backward pass | pieces | CPU s | "
    "largest difference, of the largest weight | difference, of the change | bits |\n"
    "|---:|---|---:|---|---:|---:|---:|---|"
)


class Notes:
    """Notes the pieces that were finished, and how far the others came, on behalf of whoever cuts."""

    def __init__(self, run_pieces: RunPieces, weights: Sequence[torch.Tensor]) -> None:
        self._run_pieces = run_pieces
        self._weights = weights
        self.pieces: Groups = []
        self.failures: list[dict[str, Any]] = []

    def __call__(self, items: Sequence[Any], work: Any, **options: Any) -> list[Any]:
        """Work on every item, and take notes."""

        def noted(piece: Sequence[Sample]) -> torch.Tensor:
            try:
                sums: torch.Tensor = work(piece)
            except BaseException as error:
                passed = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
                added = sum(weight.grad is not None for weight in self._weights)
                self.failures.append({"in_backward": "backward" in passed, "gradients": added})
                raise
            self.pieces.append([sample.group for sample in piece])
            return sums

        return self._run_pieces(items, noted, **options)


def samples(options: argparse.Namespace, vocabulary: int, update: int) -> list[Sample]:
    """Return random samples of random lengths, in groups that share a prompt."""
    rng = random.Random(update)

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(rng.randint(most // 2, most)))

    drawn: list[Sample] = []
    for group in range(options.groups):
        prompt = tokens(options.prompt_tokens)
        for _ in range(options.group_size):
            response = tokens(options.response_tokens)
            reference = tuple(rng.gauss(-3, 1) for _ in response)
            advantages = (rng.gauss(0, 1),) * len(response)
            drawn.append(Sample(prompt, response, advantages, group, None, reference))
    return drawn


def in_these(pieces: Sequence[int]) -> RunPieces:
    """Return who cuts all items of all calls into pieces of these sizes."""
    left = list(pieces)

    def run(items: Sequence[Any], work: Any, **options: Any) -> list[Any]:
        results, start = [], 0
        while start < len(items):
            size = left.pop(0)
            results.append(work(items[start : start + size]))
            start += size
        assert start == len(items)
        return results

    return run


def two_updates(
    folder: Path, options: argparse.Namespace, allowed_bytes: int | None, pieces: Sequence[int] | None
) -> None:
    """Make two updates into a folder, under a guard; with `pieces` in those, and without one."""
    model = train_all(load_policy(options.model)[0])
    loss = LossSettings(kl_weight=0.02, entropy_weight=0.01)
    adam = AdamSettings(options.learning_rate, eps=options.eps)
    learner = Learner(model, loss=loss, adam=adam, sharing=options.sharing)
    weights = list(model.parameters())
    folder.mkdir(parents=True)
    with EventLog(folder) as log, Meter() as meter, meter.recording(log.write):
        guard = guard_with_meter(meter, "update", unit="token", reclaim_least=2**20)
        notes = Notes(guard.run if pieces is None else in_these(pieces), weights)
        guarded = GuardedLearner(learner, notes, partial(meter.phase, "update"))
        loaded = mapped_bytes() or 0
        if allowed_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (loaded + allowed_bytes, resource.RLIM_INFINITY))
        begun, done = time.process_time(), []
        for update in range(2):
            drawn = samples(options, model.config.vocab_size, update)
            done.append(asdict(guarded.update(drawn, micro_batch_tokens=options.micro_batch_tokens)))
        seconds = time.process_time() - begun
        status = Path("/proc/self/status").read_text(encoding="ascii")
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmPeak:"))
    torch.save(model.state_dict(), folder / "weights.pt")
    told = {
        "taken_bytes": peak - loaded,
        "kept_bytes": 3 * sum(weight.numel() * weight.element_size() for weight in weights),
        "weights": len(weights),
        "seconds": seconds,
        "updates": done,
        "pieces": notes.pieces,
        "failures": notes.failures,
    }
    folder.joinpath("told.json").write_text(json.dumps(told), encoding="ascii")


def in_a_fork(
    folder: Path, options: argparse.Namespace, allowed_bytes: int | None = None, pieces: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Make the updates in a process of their own; return what it told, None if it failed."""
    is_done = done_in_a_fork(partial(two_updates, folder, options, allowed_bytes, pieces))
    return dict(json.loads(folder.joinpath("told.json").read_text(encoding="ascii"))) if is_done else None


def apart(ours: Path, theirs: Path, start: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return the largest difference as a share of the tensor's largest weight, and of all differences by all change."""
    mine, other = (torch.load(path / "weights.pt", mmap=True) for path in (ours, theirs))
    largest, off, moved = 0.0, 0.0, 0.0
    for name, weight in other.items():
        difference = (mine[name] - weight).double()
        largest = max(largest, float(difference.abs().max() / weight.abs().max()))
        off += float(difference.square().sum())
        moved += float((weight - start[name]).double().square().sum())
    return largest, (off / moved) ** 0.5


def row(folder: Path, told: dict[str, Any], allowed_bytes: int | None, compared: Sequence[str]) -> str:
    """Return a row of the table."""
    retries = ", ".join(str(event.tried) for event in read_events(folder) if isinstance(event, OomRetry))
    backward = sum(failure["in_backward"] for failure in told["failures"])
    size = f"{format_bytes(told['taken_bytes'])} (no limit)" if allowed_bytes is None else format_bytes(allowed_bytes)
    pieces = " + ".join(str(update["pieces"]) for update in told["updates"])
    return f"| {size} | {retries} | {backward} | {pieces} | {told['seconds']:.1f} | {' | '.join(compared)} |"


def main() -> None:
    """Run all updates; print a row for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.7, 0.35])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--group-size", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--response-tokens", type=int, default=96)
    parser.add_argument("--micro-batch-tokens", type=int, default=2**14)
    parser.add_argument("--sharing", default="off", help="how prompts of a group are shared: off, packed, depth_first")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--eps", type=float, default=1e-8)
    options = parser.parse_args()
    free = in_a_fork(options.out / "free", options)
    assert free is not None
    runs: dict[str, tuple[int, dict[str, Any] | None]] = {}
    for share in options.shares:
        allowed = free["kept_bytes"] + int(share * (free["taken_bytes"] - free["kept_bytes"]))
        told = in_a_fork(options.out / f"{share:g}", options, allowed)
        runs[f"{share:g}"] = allowed, told
        if told is not None:
            in_a_fork(options.out / f"{share:g}-again", options, None, [len(groups) for groups in told["pieces"]])
    print(HEAD)  # No tensor is touched before the last fork: threads of a parent hang its children.
    print(row(options.out / "free", free, None, ["", "", ""]))
    start = load_policy(options.model)[0].state_dict()
    for name, (allowed, told) in runs.items():
        if told is None:
            print(f"| {format_bytes(allowed)} | | | | | ended | | |")
            continue
        largest, shift = apart(options.out / name, options.out / "free", start)
        same = "same" if apart(options.out / name, options.out / f"{name}-again", start)[0] == 0 else "DIFFERENT"
        print(row(options.out / name, told, allowed, [f"{largest:.0e}", f"{shift:.0e}", same]))


if __name__ == "__main__":
    main()
