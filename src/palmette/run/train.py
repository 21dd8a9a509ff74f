"""One run of reinforcement learning: planned, recorded; the same folder goes on where it was stopped."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from palmette import registry
from palmette.errors import ConfigError, RunError
from palmette.events import Evaluated, Event, Noticed, UpdateDone
from palmette.planner.run_plan import PlannedMemory, planned_memory, refuse_what_cannot_fit
from palmette.run.learning_run import LearningRun
from palmette.run.parts import Askable, Parts, check_names, check_questions, load_embedder, load_scorer
from palmette.run.rollout import Rollouts, evaluation_config
from palmette.run.training_checks import (
    algorithm_of,
    check_references,
    check_training,
    credit_of,
    training_config,
)
from palmette.scale.learning.ranks import RankLostError
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.task import Question, Task
from palmette.train.algorithms.algorithm import Algorithm
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.credit.credit import make_credit
from palmette.train.loop import Shown, next_update, train
from palmette.train.rewards.rewards import Rewards
from palmette.train.rollout.ahead import Ahead
from palmette.train.rollout.credits import GivesCredit, ResponseCredit, StepCredit
from palmette.train.rollout.order import QuestionOrder
from palmette.train.rollout.split import digest_of, training_data
from palmette.train.samples import Sample
from palmette.train.server_ratio import corrected
from palmette.train.training_parts import Progress, TrainingParts
from palmette.units import one_line

if TYPE_CHECKING:
    from palmette.run.cluster.rollouts.drive import WorkerRollouts
    from palmette.run.cluster.rollouts.wire import Kind
    from palmette.run.training_policy import TrainedPolicy
    from palmette.train.update.update_result import UpdateResult


Searches = Callable[[Sequence[Question], int], list[SearchResult]]
"""Searches questions with a seed; returns the results in their order."""

SERVED_WEIGHTS = "served_weights"
"""The folder of a run in which servers find the present weights."""


class TrainingRun(LearningRun):
    """A run of reinforcement learning; see `LearningRun`.

    Raises ConfigError for what cannot be trained, BudgetError before a weight is read where the plan does not fit, and
    RunError for a folder whose run was started with other settings.
    """

    policy: "TrainedPolicy"

    def __init__(self, config: Config, folder: Path) -> None:
        config = training_config(config)
        check_training(config)
        super().__init__(config, folder)
        self._aggregate = config.search.aggregate
        self._workers: WorkerRollouts | None = None
        self._told: list[Noticed] = []
        """Notices of workers that were recorded and not shown yet."""
        self._restarts = 0

    def _enter(self) -> None:
        config = self.config
        self._needs_embedder = "clusters" in config.search.build_strategy().uses
        check_names(config, clusters=self._needs_embedder)
        self._rewards = Rewards(
            config.train.rewards, seconds=config.train.reward_seconds, on_error=config.train.on_reward_error
        )
        self.data = training_data(config.task, config.train)
        if self.data.shared:
            self.notes.append(f"{self.data.shared} questions are in the test set too and were taken out of training")
        unrewarded = check_references(config, self.data.training)
        if unrewarded is not None:
            self.notes.append(unrewarded)
        # On a cluster ranks hold what learns, and this process what generates.
        learns_here = config.scale.ranks is None or config.scale.address is None
        refuse_what_cannot_fit(config, train=learns_here)
        self._open()
        self._begin(_planned(config, train=learns_here))
        self._tell_boards(self.progress.update + 1)

    def _load(self, checkpoint: Checkpoint | None) -> None:
        """Load the models, and the state of the run from its last checkpoint."""
        from palmette.run.training_policy import TrainedPolicy

        config = self.config
        self.progress = Progress(**checkpoint.state["progress"]) if checkpoint is not None else Progress()
        self.model = self.policy = TrainedPolicy(config, checkpoint, self.folder / SERVED_WEIGHTS, self._run)
        self._stack.callback(self.policy.close)
        backend = self.policy.backend
        if config.scale.workers is not None:
            self._start_workers()
        scorer = load_scorer(config.reward)
        needs_embedder = self._needs_embedder and self._workers is None
        embedder = load_embedder(config.embedder, config.reward.device) if needs_embedder else None
        parts = Parts(backend, scorer, embedder)
        askable = check_questions(
            config, self.data.training, backend, scorer, most_prompt_tokens=config.train.prompt_tokens
        )
        self._tell_skipped(askable, "questions")
        if len(askable.questions) < config.train.questions:
            raise ConfigError(
                f"train.questions is {config.train.questions}, and of the questions to train on {len(askable.skipped)} "
                f"cannot be asked and {len(askable.questions)} are left: lower it, or raise train.prompt_tokens"
            )
        self._questions = askable.questions
        self._questions_digest = digest_of(askable.questions)
        if checkpoint is not None:
            self._check_same_questions(checkpoint)
        self._rollouts = self._searches("rollout", config, parts, self.data.training, askable.room)
        self._evaluations: tuple[Searches, Task] | None = None
        if self.data.test is not None:
            testing = evaluation_config(config)
            askable = check_questions(testing, self.data.test, backend, scorer)
            self._tell_skipped(askable, "test questions")
            test = replace(self.data.test, questions=askable.questions)
            self._evaluations = self._searches("evaluation", testing, parts, test, askable.room), test
        if checkpoint is not None:
            self._tell_changed_rewards(checkpoint)

    def _start_workers(self) -> None:
        """Start the workers that write rollouts: by Ray, here or on a cluster."""
        from palmette.run.cluster.rollouts.start import rollout_workers

        size = sum(weight.nbytes for weight in self.policy.trained_weights().values())
        self._workers = self._stack.enter_context(
            rollout_workers(
                self.config, self.data.training, size, str(self.policy.model.device), self._tell_worker, self._log.write
            )
        )

    def _searches(self, kind: "Kind", config: Config, parts: Parts, task: Task, room: int | None) -> "Searches":
        """Return who searches questions with a seed: this process, or the workers."""
        if self._workers is None:
            return Rollouts(config, parts, task, self._meter, room)
        return partial(self._workers.search, kind, task, room)

    def _tell_worker(self, text: str) -> None:
        """Record what the user should know of workers; it is shown with the next event."""
        notice = Noticed(self.progress.update, "worker", one_line(text, 300))
        self._log.write(notice)
        self._told.append(notice)

    def _tell_skipped(self, askable: Askable, kind: str) -> None:
        if askable.skipped:
            reason = f"the first because {askable.skipped[0]}"
            self.notes.append(f"{len(askable.skipped)} {kind} cannot be asked and are left out, {reason}")

    def _check_same_questions(self, checkpoint: Checkpoint) -> None:
        """Raise RunError where the run would go on with other questions: its position in their order would be wrong."""
        if checkpoint.state.get("questions", self._questions_digest) != self._questions_digest:
            raise RunError(
                f"{self.folder} was started with other questions to train on than there are now: "
                f"{self.config.task.name} has changed, or what is left out of it for tests or for its length. Give it "
                f"the same questions, or another --out"
            )

    def _tell_changed_rewards(self, checkpoint: Checkpoint) -> None:
        before = checkpoint.state.get("rewards", {})
        for name, digest in self._rewards.digests.items():
            if before.get(name, digest) != digest:
                self.notes.append(
                    f"the file of the reward {one_line(name, 120)} has changed since update {checkpoint.update}: "
                    f"updates from here on are rewarded by what it holds now"
                )

    def updates(self) -> Iterator[Shown]:
        """Train to the end; yield every update, evaluation and notice. Safe to stop at any moment.

        Ranks that are lost are started again, and the run goes back to its last checkpoint: `scale.restarts` times
        without an update in between, then RankLostError is raised.
        """
        lost: RankLostError | None = None
        losses = 0
        while True:
            try:
                if lost is not None:
                    yield self._restart_ranks(lost)
                for shown in self._updates():
                    losses = 0 if isinstance(shown, UpdateDone) else losses
                    while self._told:
                        yield self._told.pop(0)
                    yield shown
                return
            except RankLostError as error:
                losses += 1
                if losses > self.config.scale.restarts:
                    raise
                lost = error

    def _updates(self) -> Iterator[Shown]:
        return train(self._parts(), self.config.train, self.progress, seed=self.config.seed, aggregate=self._aggregate)

    def _restart_ranks(self, error: RankLostError) -> Noticed:
        """Go back to the last checkpoint with new ranks; return what the user is told."""
        update = self.progress.update
        checkpoint = self._store.newest().checkpoint
        where = "the beginning" if checkpoint is None else f"the checkpoint after update {checkpoint.update}"
        notice = Noticed(update, "rank", f"{one_line(str(error), 300)}. All ranks start again from {where}")
        self._record(notice)
        self._restarts += 1
        self.policy.restart_ranks(checkpoint)
        self.progress = Progress(**checkpoint.state["progress"]) if checkpoint is not None else Progress()
        return notice

    def _parts(self) -> TrainingParts:
        settings = self.config.train
        algorithm = algorithm_of(self.config)
        limit = self.config.search.total_tokens
        reference = partial(self.policy.reference_logprobs, run_pieces=self._guarded("reference"))
        values = partial(self.policy.values, run_pieces=self._guarded("values"))
        staleness, is_served = self.config.scale.staleness, self.policy.published is not None
        return TrainingParts(
            order=QuestionOrder(self._questions, self.config.seed),
            publish=self._publish if staleness else None,
            roll_out=self._roll_out,
            rewards=self._rewards,
            credit=credit_for(self.config, algorithm, limit),
            reference=reference if settings.uses_reference else None,
            values=values if algorithm.critic else None,
            compare=self._compare if is_served or staleness else None,
            learning_rate=self._learning_rate,
            update=self._update,
            evaluate=self._evaluate,
            checkpoint=self._checkpoint,
            phase=self._phase,
            peak_bytes=self._meter.peaks,
            record=self._record,
            staleness=staleness,
            too_old=None if self.policy.published is None else self.policy.published.older_than,
        )

    def _roll_out(self, questions: Sequence[Question], seed: int) -> list[SearchResult]:
        """Search questions with the policy as it is, or where weights may be older as it was when they were sent."""
        if not self.config.scale.staleness:
            self._publish()
        return self._rollouts(questions, seed)

    def _publish(self) -> None:
        """Have the newest weights where they generate: in this process, on workers, or on servers."""
        self.policy.fetch_weights()
        if self.policy.published is not None:
            self.policy.published.publish(self.progress.update)
        if self._workers is not None:
            # After ranks were lost the same update may have other weights.
            self._workers.publish((self._restarts, self.progress.update), self.policy.trained_weights)

    def _compare(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
        """Compare the log-probabilities of who generated with those of the present weights; correct the samples."""
        numbers = {} if self.policy.published is None else self.policy.published.numbers()
        train = self.config.train
        if train.server_ratio == "off":
            return list(samples), numbers
        own = self.policy.logprobs(samples, self._guarded("compare"))
        changed, ratios = corrected(samples, own, train.server_ratio, train.server_ratio_cut)
        return changed, {**numbers, **ratios}

    def preview(self) -> UpdateDone:
        """Return the first update as it would be, made up to the optimizer step: no weight changes."""
        parts = replace(self._parts(), update=self._try_update, staleness=0)
        ahead = Ahead(parts, self.config.train, seed=self.config.seed, aggregate=self._aggregate)
        return next_update(parts, self.config.train, Progress(), ahead)

    def listen(self, on_tokens: Callable[[int], None]) -> None:
        """Call this with the number of tokens that the policy has written since the last call."""
        (self.policy.backend if self._workers is None else self._workers).on_tokens = on_tokens

    def _update(self, samples: Sequence[Sample], learning_rate: float, on_policy: bool = False) -> "UpdateResult":
        """Make one optimizer step, and before it one of a critic that is a model of its own, as verl does."""
        if self.policy.critic is None:
            return super()._update(samples, learning_rate, on_policy)
        share = learning_rate / self.config.train.learning_rate
        of_critic = self.policy.critic.update(samples, share, self._run_pieces)
        return replace(super()._update(samples, learning_rate, on_policy), critic=of_critic)

    def _try_update(self, samples: Sequence[Sample], learning_rate: float, on_policy: bool) -> "UpdateResult":
        """Compute the gradients of an update and drop them."""
        return self._update(samples, 0.0, on_policy)

    def _checkpoint(self, progress: Progress, metric: float | None) -> Event:
        return self._write_checkpoint(
            progress, metric, {"questions": self._questions_digest, "rewards": self._rewards.digests}
        )

    def _evaluate(self, update: int) -> Evaluated:
        """Search the test questions with the policy as it is; always with the same seed."""
        assert self._evaluations is not None
        search, task = self._evaluations
        begun = time.monotonic()
        with self._phase("evaluation"):
            self._publish()
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

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        memory = self.config.memory
        generates = name in ("rollout", "evaluation")
        share = memory.inference_share if generates else memory.training_share
        # After a phase that generates, the weights are about to change.
        with self._metered(name, share, free_cache=self.policy.free_cache if generates else None):
            yield


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


def _planned(config: Config, *, train: bool) -> PlannedMemory:
    """Return what the plan expects of each phase, by the names that the meter of training has for them."""
    planned = planned_memory(config, train=train)
    by_phase = dict(planned.by_phase)
    by_phase["rollout"] = by_phase.pop("search", 0) or 0
    return replace(planned, by_phase=by_phase)
