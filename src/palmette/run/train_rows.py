"""One run of training on rows of a file: a policy on answers (`sft`), or a process reward model on labels of steps."""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palmette.backends.local import context_of
from palmette.errors import ConfigError, RunError
from palmette.events import Event, RowsTested, UpdateDone
from palmette.planner.run_plan import planned_memory, refuse_what_cannot_fit
from palmette.run.label_steps import label_steps, labeled_task
from palmette.run.learning_run import LearningRun
from palmette.run.row_checks import Table, check_rows_config, data_of, planned_config, row_config
from palmette.settings import Config
from palmette.train.checkpoints.store import Checkpoint
from palmette.train.samples import Sample
from palmette.train.supervised.encode import (
    EncodedRows,
    encode_conversation,
    encode_rows,
    encode_steps,
    samples_of,
)
from palmette.train.supervised.loop import RowParts, RowProgress, train_on_rows
from palmette.train.supervised.measures import step_measures
from palmette.train.supervised.order import held_out, updates_of
from palmette.train.supervised.rows import read_conversations, read_labeled_steps
from palmette.units import count_of
from palmette.zoo.load import load_tokenizer
from palmette.zoo.resolve import check_model_name


class RowRun(LearningRun):
    """A run of training on rows; see `LearningRun`.

    Rows are read, checked and encoded before a weight is read. Raises ConfigError for rows that cannot be trained on,
    BudgetError where the plan does not fit, RunError for a folder whose run was started with other rows.
    `on_labeled` is called with the number of questions whose steps are labeled, and with that of all.
    """

    table: Table

    def __init__(self, config: Config, folder: Path, on_labeled: Callable[[int, int], None] | None = None) -> None:
        config = row_config(config, self.table)
        check_rows_config(config, self.table)
        super().__init__(config, folder)
        self.progress = RowProgress()
        self._on_labeled = on_labeled

    @abstractmethod
    def _read(self, tokenizer: Any, context_tokens: int | None) -> EncodedRows:
        """Return the rows as tokens."""

    @abstractmethod
    def _measure(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Return statistics of the model on samples, `loss` among them, without changing it."""

    def _enter(self) -> None:
        config, settings = self.config, data_of(self.config, self.table)
        check_model_name(config.policy.model, "policy")
        tokenizer, model_config = load_tokenizer(config.policy.model)
        self._open()
        self._encoded = self._read(tokenizer, context_of(model_config))
        rows = self._encoded.rows
        if self._encoded.skipped:
            self.notes.append(f"{count_of(self._encoded.skipped, 'row')} too long and left out")
        training, self._tested = held_out([row.key for row in rows], settings.test_share)
        if settings.test_share and not self._tested:
            raise ConfigError(
                f"{self.table}.test_share is {settings.test_share}, and all rows have the same prompt: none can be "
                f"held out. Leave it out, or add rows"
            )
        cut = updates_of(
            [rows[place].tokens for place in training],
            [rows[place].key for place in training],
            batch_tokens=settings.batch_tokens,
            epochs=settings.epochs,
            seed=config.seed,
        )
        self._batches = [[training[place] for place in places] for places in cut]
        train = config.train.model_copy(update={"updates": len(self._batches)})
        self.config = config = config.model_copy(update={"train": train})
        tokens = sum(rows[place].tokens for place in training)
        self.notes.append(
            f"{count_of(len(training), 'row')} of {count_of(tokens, 'token')} to train on, "
            f"{count_of(len(self._tested), 'row')} held out, {count_of(len(self._batches), 'update')}"
        )
        planned = planned_config(config, self.table, max(row.tokens for row in rows))
        refuse_what_cannot_fit(planned, train=True)
        self._begin(planned_memory(planned, train=True))
        self._tell_boards(self.progress.update + 1)

    def _load(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            if checkpoint.state.get("rows") != self._encoded.digest:
                raise RunError(
                    f"{self.folder} was started with other rows than those that are there now: give it the same data, "
                    f"or another --out"
                )
            self.progress = RowProgress(**checkpoint.state["progress"])
        self._load_model(checkpoint)

    @abstractmethod
    def _load_model(self, checkpoint: Checkpoint | None) -> None:
        """Load the model."""

    def updates(self) -> Iterator[UpdateDone | RowsTested]:
        """Train to the end; yield every update and test. Safe to stop at any moment."""
        train = self.config.train
        parts = RowParts(
            batches=self._batches,
            epochs=data_of(self.config, self.table).epochs,
            samples=lambda rows: samples_of(self._encoded.rows, rows, self.config.sft.prompt_weight),
            learning_rate=self._learning_rate,
            update=self._update,
            test=self._test if self._tested else None,
            metric=lambda tested: -tested.numbers["loss"],
            checkpoint=self._checkpoint,
            phase=self._phase,
            peak_bytes=self._meter.peaks,
            record=self._record,
        )
        yield from train_on_rows(
            parts, self.progress, eval_every=train.eval_every, checkpoint_every=train.checkpoint_every
        )

    def _test(self, update: int) -> RowsTested:
        begun = time.monotonic()
        with self._phase("test"):
            numbers = self._measure(samples_of(self._encoded.rows, self._tested))
        return RowsTested(update, len(self._tested), numbers, round(time.monotonic() - begun, 3))

    def _checkpoint(self, progress: RowProgress, metric: float | None) -> Event:
        return self._write_checkpoint(progress, metric, {"rows": self._encoded.digest})

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        with self._metered(name, self.config.memory.training_share):
            yield


class SftRun(RowRun):
    """Supervised fine-tuning: the policy learns the answers of rows, token by token."""

    table: Table = "sft"

    def _read(self, tokenizer: Any, context_tokens: int | None) -> EncodedRows:
        assert self.config.sft.data is not None
        rows = read_conversations(Path(self.config.sft.data))
        return encode_rows(
            rows, lambda row: encode_conversation(tokenizer, row), self.config.sft, self.table, context_tokens
        )

    def _load_model(self, checkpoint: Checkpoint | None) -> None:
        from palmette.run.row_models import ImitatingPolicy

        self.model = ImitatingPolicy(self.config, checkpoint)

    def _measure(self, samples: Sequence[Sample]) -> dict[str, float]:
        from palmette.train.update.reference import response_logprobs

        found = response_logprobs(self.model.trained, samples, micro_batch_tokens=self.model.most_tokens(samples))
        return {"loss": -sum(map(sum, found)) / sum(map(len, found))}


class PrmRun(RowRun):
    """Training of a process reward model: a scalar head on a causal model's body learns labels of steps.

    Without a file of labels they are made first, by rollouts of the policy.
    """

    table: Table = "prm"

    def _read(self, tokenizer: Any, context_tokens: int | None) -> EncodedRows:
        settings = self.config.prm
        if settings.data is not None:
            path, separator = Path(settings.data), settings.separator
        else:
            task = labeled_task(self.config)
            separator = task.step_end
            path, notes = label_steps(self.config, task, self.folder, self._on_labeled)
            self.notes += notes
        return encode_rows(
            read_labeled_steps(path),
            lambda row: encode_steps(tokenizer, row, separator),
            settings,
            self.table,
            context_tokens,
        )

    def _load_model(self, checkpoint: Checkpoint | None) -> None:
        from palmette.run.row_models import RewardModel

        self.model = RewardModel(self.config, checkpoint)

    def _measure(self, samples: Sequence[Sample]) -> dict[str, float]:
        from palmette.train.update.reference import response_values

        assert self.model.value_head is not None
        tokens = self.model.most_tokens(samples)
        found = response_values(self.model.trained, self.model.value_head, samples, micro_batch_tokens=tokens)
        logits = [value for sample, values in zip(samples, found, strict=True) for value in sample.counted(values)]
        labels = [label for sample in samples for label in sample.counted(sample.returns or ())]
        return step_measures(logits, labels)
