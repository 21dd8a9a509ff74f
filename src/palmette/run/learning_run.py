"""What all training runs have: a folder with events and checkpoints, a meter, a guard, a learning rate."""

import gc
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from palmette import __version__
from palmette.errors import RunError
from palmette.event_log import EventLog, read_events
from palmette.events import CheckpointWritten, Event, RunStarted
from palmette.memory.device import limit_device_memory
from palmette.memory.guard import RunPieces, guard_with_meter, run_whole
from palmette.memory.heap import mapped_blocks
from palmette.memory.meter import Meter
from palmette.planner.run_plan import PlannedMemory
from palmette.run.boards import boards
from palmette.run.folder import has_begun, recorded_values
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint, CheckpointStore
from palmette.train.samples import Sample
from palmette.train.schedule import learning_rate
from palmette.units import parse_bytes

if TYPE_CHECKING:
    from palmette.run.trained_model import TrainedModel
    from palmette.train.update.update_result import UpdateResult

CHECKPOINTS = "checkpoints"

AnyRun = TypeVar("AnyRun", bound="LearningRun")


class LearningRun(ABC):
    """A training run in a folder of its own. Entering it loads the model, or the last sound checkpoint of the folder.

    `config` is complete: its `train.updates` is the number of updates that the run has. `notes` says what the user
    should know before training starts.
    """

    model: "TrainedModel"

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder.absolute()  # Reward functions may change the working directory.
        self.notes: list[str] = []
        self._stack = ExitStack()

    def __enter__(self: AnyRun) -> AnyRun:
        with self._stack:
            self._enter()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _enter(self) -> None:
        """Check what can be checked before a weight is read; then `_open`, `_begin`, `_tell_boards`."""

    @abstractmethod
    def _load(self, checkpoint: Checkpoint | None) -> None:
        """Load the model and the state of the run from its last checkpoint."""

    def _open(self) -> None:
        """Lock the folder for this process; the first event of a run is the config that it began with."""
        self._log = self._stack.enter_context(EventLog(self.folder))
        if not has_begun(self.folder):
            self._log.clear()
        if self._log.is_empty:
            self._log.write(RunStarted(__version__, recorded_values(self.config), secrets.token_hex(8)))
        first = next(read_events(self.folder))
        self._run = first.run if isinstance(first, RunStarted) else ""

    def _begin(self, planned: PlannedMemory) -> None:
        """Find the folder's last sound checkpoint, load the model and begin to meter.

        Raises RunError where there are checkpoints and none is sound: nobody asked to train from the beginning.
        """
        config = self.config
        self._returns_blocks = planned.returns_blocks
        self._store = CheckpointStore(self.folder / CHECKPOINTS, keep=config.train.keep_checkpoints, run=self._run)
        found = self._store.newest()
        if found.checkpoint is None and found.damaged:
            raise RunError(
                f"no checkpoint of {self.folder} can be gone on from, the newest because of this: {found.damaged[0]}. "
                f"Move {self.folder / CHECKPOINTS} away to start from the beginning"
            )
        self.notes += [f"not used: {told}" for told in found.damaged]
        meter = Meter(
            sample_seconds=config.memory.sample_seconds,
            planned_bytes=planned.by_phase,
            limit_bytes=planned.limit_bytes,
        )
        self._meter = self._stack.enter_context(meter)
        self._stack.enter_context(self._meter.recording(self._log.write))
        with self._meter.phase("load"):
            self._pin_threads(found.checkpoint)
            self._load(found.checkpoint)
        self._run_pieces = self._guarded("update")
        self.notes += self.model.learner.notes
        self._meter.reclaim("load", parse_bytes(config.memory.reclaim_least))
        gc.freeze()  # What was loaded stays: garbage is looked for among what came later, which takes a tenth as long.
        self._stack.callback(gc.unfreeze)

    def _guarded(self, phase: str) -> RunPieces:
        """Return who cuts micro-batches of this phase that run out of memory."""
        if not self.config.memory.guard:
            return run_whole
        return guard_with_meter(
            self._meter,
            phase,
            unit="token",
            reclaim_least=parse_bytes(self.config.memory.reclaim_least),
            limit_bytes=self._meter.limit_bytes,
            planned_bytes=self._meter.planned_bytes.get(phase),
        ).run

    def _pin_threads(self, checkpoint: Checkpoint | None) -> None:
        """Use as many threads as the run began with: sums depend on how many add them up."""
        from palmette.engine.threads import pinned_threads, thread_count

        self._threads = thread_count() if checkpoint is None else int(checkpoint.state["threads"])
        self._stack.enter_context(pinned_threads(self._threads))

    def _tell_boards(self, update: int) -> None:
        """Hand events from now on to the boards that the config names; the next one is of this update."""
        told = recorded_values(self.config)
        self._tell = self._stack.enter_context(boards(self.config.train.log_to, self.folder, told, update))

    def _record(self, event: Event) -> None:
        self._log.write(event)
        self._tell(event)

    def last_checkpoint(self) -> Path | None:
        """Return the folder of the last sound checkpoint, below that of the run."""
        last = self._store.last()
        return None if last is None else last.relative_to(self.folder)

    def _learning_rate(self, update: int) -> float:
        train = self.config.train
        return learning_rate(
            update,
            peak=train.learning_rate,
            shape=train.schedule,
            warmup=min(train.warmup_updates, train.updates),
            steps=train.updates + 1,  # The update after the last would have 0.
        )

    def _update(self, samples: Sequence[Sample], learning_rate: float, on_policy: bool = False) -> "UpdateResult":
        return self.model.learner.update(
            samples,
            micro_batch_tokens=self.model.most_tokens(samples),
            run_pieces=self._run_pieces,
            on_policy=on_policy,
            learning_rate=learning_rate,
        )

    def _write_checkpoint(self, progress: Any, metric: float | None, state: Mapping[str, Any] | None = None) -> Event:
        """Write a checkpoint with this progress, a dataclass whose `update` counts the updates done."""
        begun = time.monotonic()
        with self._meter.phase("checkpoint"):
            folder = self._store.save(
                progress.update,
                write_model=self.model.save,
                tensors=self.model.state_dict(),
                state={"progress": asdict(progress), "threads": self._threads, **(state or {})},
                metric=metric,
            )
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        seconds = round(time.monotonic() - begun, 3)
        return CheckpointWritten(progress.update, f"{CHECKPOINTS}/{folder.name}", size, seconds)

    @contextmanager
    def _metered(self, name: str, share: float, free_cache: Callable[[], object] | None = None) -> Iterator[None]:
        """Meter a phase within its share of the device; then free what only this phase needed.

        A phase that generates gives `free_cache`; afterwards its memory is handed over to those that learn. These
        return freed blocks at once where the plan has no room for a heap that keeps them.
        """
        limit_device_memory(str(self.model.model.device), share)
        learns = free_cache is None
        with self._meter.phase(name), mapped_blocks() if learns and self._returns_blocks else nullcontext():
            yield
        with nullcontext() if learns else self._meter.phase("hand-over"):
            if free_cache is not None:
                free_cache()
            self._meter.reclaim(name, parse_bytes(self.config.memory.reclaim_least))
