"""A search with all memory there is, then with shares of what that took.

`python -m benchmarks.capped OUT [CONFIG.yaml] [SHARE ...]` prints a row for each; without a config it takes SmolLM2.
Each search runs in a process of its own, whose address space is limited after its models are loaded.
"""

import json
import resource
import sys
from functools import partial
from pathlib import Path

import palmette.backends.local
import palmette.score.scorers.likelihood
import palmette.zoo.load  # noqa: F401 - imported before the forks, once for all searches
from benchmarks.fork import done_in_a_fork
from palmette import Searcher
from palmette.config import check_config, load_config
from palmette.event_log import read_events
from palmette.events import Event, OomRetry, QuestionFinished, Session, WaveDone
from palmette.memory.host import mapped_bytes
from palmette.settings import Config
from palmette.tasks.load import load_task
from palmette.units import format_bytes

SMOLLM2 = {
    "policy": {"model": "smollm2-135m"},
    "reward": {"model": "smollm2-135m", "score": "likelihood"},
    "task": {"name": "rg:chain_sum", "questions": 2},
    "search": {"strategy": "rebase", "width": 32, "step_tokens": 12, "total_tokens": 24},
}


def search(folder: Path, config: Config, allowed_bytes: int | None) -> None:
    """Search into a folder; with `allowed_bytes` the address space may grow by so much after loading."""
    with Searcher(config=config) as searcher:
        loaded = mapped_bytes() or 0
        if allowed_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (loaded + allowed_bytes, resource.RLIM_INFINITY))
        searcher.search(load_task(config.task), out=folder)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmPeak:"))
    folder.joinpath("taken").write_text(str(peak - loaded), encoding="ascii")


def in_a_fork(folder: Path, config: Config, allowed_bytes: int | None) -> int | None:
    """Search in a process of its own; return the address space it took beyond what was loaded, None if it failed."""
    is_done = done_in_a_fork(partial(search, folder, config, allowed_bytes))
    return int(folder.joinpath("taken").read_text(encoding="ascii")) if is_done else None


def grown(folder: Path) -> list[Event]:
    """Return what a run grew and answered, without log-probabilities: their last digit moves with the batch."""
    found: list[Event] = []
    for event in read_events(folder):
        if isinstance(event, QuestionFinished):
            found.append(event)
        elif isinstance(event, WaveDone):
            nodes = tuple(node.__class__(**{**vars(node), "logprobs": ()}) for node in event.nodes)
            found.append(event.__class__(**{**vars(event), "nodes": nodes}))
    return found


def main() -> None:
    """Run all searches; print a row for each."""
    folder = Path(sys.argv[1])
    named = sys.argv[2:3] if sys.argv[2:3] and sys.argv[2].endswith(".yaml") else []
    config = load_config(Path(named[0])) if named else check_config(SMOLLM2, {}, "benchmark")
    shares = [float(share) for share in sys.argv[2 + len(named) :]] or [0.5, 0.3]
    taken = in_a_fork(folder / "free", config, None)
    assert taken is not None
    print("| memory beside the models | retries (guard, size that failed) | seconds | same trees and answers |")
    print("|---:|---|---:|---|")
    for name, allowed in [("free", None), *((f"{share:g}", int(taken * share)) for share in shares)]:
        if allowed is not None and in_a_fork(folder / name, config, allowed) is None:
            print(f"| {format_bytes(allowed)} | | | ended |")
            continue
        events = list(read_events(folder / name))
        retries = [f"{event.guard} {event.tried}" for event in events if isinstance(event, OomRetry)]
        seconds = sum(event.seconds for event in events if isinstance(event, Session))
        same = "" if allowed is None else "yes" if grown(folder / name) == grown(folder / "free") else "NO"
        size = format_bytes(taken if allowed is None else allowed)
        print(f"| {size}{' (no limit)' if allowed is None else ''} | {', '.join(retries)} | {seconds:.1f} | {same} |")
    folder.joinpath("taken.json").write_text(json.dumps({"taken_bytes": taken}), encoding="ascii")


if __name__ == "__main__":
    main()
