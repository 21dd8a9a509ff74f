"""One training run: planned, metered, guarded, recorded; the same folder goes on where it was stopped."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from palmette import __version__, registry
from palmette.config import load_config
from palmette.event_log import EventLog
from palmette.events import CheckpointWritten, Evaluated, Event, RunStarted, UpdateDone
from palmette.memory.device import limit_device_memory
from palmette.memory.guard import guard_with_meter, run_whole
from palmette.memory.meter import Meter
from palmette.planner.run_plan import planned_memory, refuse_what_cannot_fit
from palmette.run.boards import boards
from palmette.run.folder import recorded_values
from palmette.run.parts import Parts, check_names, check_questions, load_embedder, load_scorer
from palmette.run.rollout import Rollouts
from palmette.run.training_checks import algorithm_of, check_training, credit_of, training_config
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.task import Task
from palmette.train.algorithms.algorithm import Algorithm
from palmette.train.checkpoints.store import Checkpoint, CheckpointStore
from palmette.train.credit.credit import make_credit
from palmette.train.loop import Progress, Shown, TrainingParts, next_update, train
from palmette.train.rewards.rewards import Rewards
from palmette.train.rollout.credits import GivesCredit, ResponseCredit, StepCredit
from palmette.train.rollout.order import QuestionOrder
from palmette.train.rollout.split import training_data
from palmette.train.samples import Sample
from palmette.train.schedule import learning_rate
from palmette.units import parse_bytes

if TYPE_CHECKING:
    from palmette.train.update_result import UpdateResult

CHECKPOINTS = "checkpoints"


class TrainingRun:
    """A training run in a folder of its own. Entering it loads the policy, or the last sound checkpoint of the folder.

    Raises ConfigError for what cannot be trained, BudgetError before a weight is read where the plan does not fit, and
    RunError for a folder whose run was started with other settings.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        config = training_config(config)
        check_training(config)
        self.config = config
        self.folder = folder
        self.notes: list[str] = []
        """What the user should know before training starts."""
        self._aggregate = config.search.aggregate
        self._stack = ExitStack()

    def __enter__(self) -> "TrainingRun":
        with self._stack:
            self._enter()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _enter(self) -> None:
        config = self.config
        needs_embedder = "clusters" in config.search.build_strategy().uses
        check_names(config, clusters=needs_embedder)
        self._rewards = Rewards(
            config.train.rewards, seconds=config.train.reward_seconds, on_error=config.train.on_reward_error
        )
        self.data = training_data(config.task, config.train)
        if self.data.shared:
            self.notes.append(f"{self.data.shared} questions are in the test set too and were taken out of training")
        refuse_what_cannot_fit(config, train=True)
        self._log = self._stack.enter_context(EventLog(self.folder))
        if self._log.is_empty:
            self._log.write(RunStarted(__version__, recorded_values(config)))
        self._store = CheckpointStore(self.folder / CHECKPOINTS, keep=config.train.keep_checkpoints)
        found = self._store.newest()
        self.notes += [f"not used: {told}" for told in found.damaged]
        self._meter = self._stack.enter_context(_meter(config))
        self._stack.enter_context(self._meter.recording(self._log.write))
        with self._meter.phase("load"):
            self._load(found.checkpoint, needs_embedder=needs_embedder)
        self._meter.reclaim("load", parse_bytes(config.memory.reclaim_least))
        told = recorded_values(config)
        self._tell = self._stack.enter_context(boards(config.train.log_to, self.folder, told, self.progress.update + 1))

    def _load(self, checkpoint: Checkpoint | None, *, needs_embedder: bool) -> None:
        """Load the models, and the state of the run from its last checkpoint."""
        from palmette.engine.threads import pinned_threads, thread_count
        from palmette.run.training_policy import TrainedPolicy

        config = self.config
        # Sums depend on how many threads add them up: a run goes on with the number that it began with.
        self._threads = thread_count() if checkpoint is None else int(checkpoint.state["threads"])
        self._stack.enter_context(pinned_threads(self._threads))
        self.policy = TrainedPolicy(config, checkpoint)
        backend = self.policy.backend
        scorer = load_scorer(config.reward)
        embedder = load_embedder(config.embedder, config.reward.device) if needs_embedder else None
        parts = Parts(backend, scorer, embedder)
        askable = check_questions(config, self.data.training, backend, scorer)
        if askable.skipped:
            reason = f"the first because {askable.skipped[0]}"
            self.notes.append(f"{len(askable.skipped)} questions cannot be asked and are left out, {reason}")
        self._questions = askable.questions
        self._rollouts = Rollouts(config, parts, self.data.training, self._meter, askable.room)
        self._evaluations: tuple[Rollouts, Task] | None = None
        if self.data.test is not None:
            settings = {"search.strategy": config.train.eval_strategy, "search.width": config.train.eval_width}
            testing = load_config(config, settings)
            room = check_questions(testing, self.data.test, backend, scorer).room
            self._evaluations = Rollouts(testing, parts, self.data.test, self._meter, room), self.data.test
        self.progress = Progress(**checkpoint.state["progress"]) if checkpoint is not None else Progress()
        guard = guard_with_meter(
            self._meter,
            "update",
            unit="token",
            reclaim_least=parse_bytes(config.memory.reclaim_least),
            limit_bytes=self._meter.limit_bytes,
            planned_bytes=self._meter.planned_bytes.get("update"),
        )
        self._run_pieces = guard.run if config.memory.guard else run_whole
        self.notes += self.policy.learner.notes

    def updates(self) -> Iterator[Shown]:
        """Train to the end; yield every update, evaluation and notice. Safe to stop at any moment."""
        yield from train(
            self._parts(), self.config.train, self.progress, seed=self.config.seed, aggregate=self._aggregate
        )

    def _parts(self) -> TrainingParts:
        settings = self.config.train
        algorithm = algorithm_of(self.config)
        limit = self.config.search.total_tokens
        return TrainingParts(
            order=QuestionOrder(self._questions, self.config.seed),
            roll_out=self._rollouts,
            rewards=self._rewards,
            credit=credit_for(self.config, algorithm, limit),
            reference=self.policy.reference_logprobs if settings.uses_reference else None,
            values=self.policy.values if algorithm.critic else None,
            learning_rate=self._learning_rate,
            update=self._update,
            evaluate=self._evaluate,
            checkpoint=self._checkpoint,
            phase=self._phase,
            peak_bytes=self._meter.peaks,
            record=self._record,
        )

    def preview(self) -> UpdateDone:
        """Return the first update as it would be, made up to the optimizer step: no weight changes."""
        parts = replace(self._parts(), update=self._try_update)
        return next_update(parts, self.config.train, Progress(), seed=self.config.seed, aggregate=self._aggregate)

    def listen(self, on_tokens: Callable[[int], None]) -> None:
        """Call this with the number of tokens that the policy has written since the last call."""
        self.policy.backend.on_tokens = on_tokens

    def last_checkpoint(self) -> Path | None:
        """Return the folder of the last checkpoint."""
        updates = self._store.updates()
        return self._store.path(updates[-1]) if updates else None

    def _record(self, event: Event) -> None:
        self._log.write(event)
        self._tell(event)

    def _learning_rate(self, update: int) -> float:
        train = self.config.train
        return learning_rate(
            update,
            peak=train.learning_rate,
            shape=train.schedule,
            warmup=min(train.warmup_updates, train.updates),
            steps=train.updates + 1,  # The update after the last would have 0.
        )

    def _try_update(self, samples: Sequence[Sample], learning_rate: float, on_policy: bool) -> "UpdateResult":
        """Compute the gradients of an update and drop them."""
        return self._update(samples, 0.0, on_policy)

    def _update(self, samples: Sequence[Sample], learning_rate: float, on_policy: bool) -> "UpdateResult":
        longest = max(sample.fed_tokens for sample in samples)
        return self.policy.learner.update(
            samples,
            micro_batch_tokens=max(self.config.train.micro_batch_tokens, longest),
            run_pieces=self._run_pieces,
            on_policy=on_policy,
            learning_rate=learning_rate,
        )

    def _evaluate(self, update: int) -> Evaluated:
        """Search the test questions with the policy as it is; always with the same seed."""
        assert self._evaluations is not None
        search, task = self._evaluations
        begun = time.monotonic()
        with self._phase("evaluation"):
            results = search(task.questions, self.config.seed)
        shares = [_correct_share(result) for result in results]
        mean = sum(shares) / len(shares)
        spread = sum((share - mean) ** 2 for share in shares) / max(1, len(shares) - 1)
        return Evaluated(
            update=update,
            questions=len(results),
            single=mean,
            elected=sum(result.outcome == "correct" for result in results) / len(results),
            error=math.sqrt(spread / len(shares)),
            tokens=sum(result.tokens for result in results),
            seconds=round(time.monotonic() - begun, 3),
        )

    def _checkpoint(self, progress: Progress, metric: float | None) -> Event:
        begun = time.monotonic()
        with self._meter.phase("checkpoint"):
            folder = self._store.save(
                progress.update,
                write_model=self.policy.save,
                tensors=self.policy.learner.state_dict(),
                state={"progress": asdict(progress), "threads": self._threads},
                metric=metric,
            )
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        seconds = round(time.monotonic() - begun, 3)
        return CheckpointWritten(progress.update, f"{CHECKPOINTS}/{folder.name}", size, seconds)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Meter a phase within its share of the device; afterwards free what only it needed."""
        memory = self.config.memory
        generates = name in ("rollout", "evaluation")
        share = memory.inference_share if generates else memory.training_share
        limit_device_memory(self.policy.backend.device, share)
        with self._meter.phase(name):
            yield
        if generates:
            self.policy.backend.free_cache()  # Its weights are about to change.
        self._meter.reclaim(name, parse_bytes(memory.reclaim_least))


def credit_for(config: Config, algorithm: Algorithm, limit_tokens: int) -> GivesCredit:
    """Return who gives credit: the algorithm to whole responses, or the config's way to credit to steps."""
    name = credit_of(config)
    if name == "flat":
        return ResponseCredit(algorithm, limit_tokens=limit_tokens, mask_cut=config.train.mask_cut)
    part = registry.find("credit", name)
    own = {key: value for key, value in config.train.options.items() if key in part.Settings.model_fields}
    return StepCredit(make_credit(part, own, algorithm=algorithm), algorithm, limit_tokens=limit_tokens)


def _correct_share(result: SearchResult) -> float:
    leaves = result.leaves
    return sum(leaf.outcome == "correct" for leaf in leaves) / len(leaves) if leaves else 0.0


def _meter(config: Config) -> Meter:
    """Return a meter that knows what the plan expects of each phase."""
    planned = planned_memory(config, train=True)
    by_phase = dict(planned.by_phase)
    by_phase["rollout"] = by_phase.pop("search", 0) or 0
    return Meter(sample_seconds=config.memory.sample_seconds, planned_bytes=by_phase, limit_bytes=planned.limit_bytes)
