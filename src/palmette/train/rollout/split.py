"""Questions to train on and questions to test with, of which none is in both."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from palmette.errors import ConfigError
from palmette.settings import TaskSettings, TrainSettings
from palmette.tasks.load import FILE_SOURCE, load_task, source_of
from palmette.tasks.task import COLUMNS, Question, Task

_TEST_SEED = 1_000_003
"""Added to the seed of a generator that does not split its questions by itself."""

_TESTED_SHARE = 10
"""Of a file without a test file of its own at most one in so many questions is held out."""


@dataclass(frozen=True)
class TrainingData:
    """A task to train on, one to test with (None if no evaluation is asked for), and how many questions were in both.

    These were taken out of training.
    """

    training: Task
    test: Task | None
    shared: int


def training_data(task: TaskSettings, train: TrainSettings) -> TrainingData:
    """Load the questions of a training run.

    The test questions are those of `train.eval_task`; without it the task's own test split, those of another seed, or
    for a file some of its rows, chosen by a hash of their text. Raises ConfigError if no question is left to train on,
    or fewer than an update takes.
    """
    is_file = source_of(task.name) == FILE_SOURCE
    training = load_task(task.model_copy(update={"split": "train"}))
    test = None
    if train.eval_every:
        if train.eval_task is None and is_file:
            training, test = _held_out(training, train.eval_questions)
        else:
            test = load_task(_test_settings(task, train))
    asked = set() if test is None else {_text(question) for question in test.questions}
    left = tuple(question for question in training.questions if _text(question) not in asked)
    shared = len(training.questions) - len(left)
    if len(left) < train.questions and shared:
        of_test = f"train.eval_task {train.eval_task}" if train.eval_task else "the test set"
        raise ConfigError(
            f"{shared} of the {len(training.questions)} questions of {task.name} are in {of_test} too and not trained "
            f"on: {len(left)} are left, and train.questions is {train.questions}. Test with other questions, or train "
            f"on more"
        )
    if len(left) < train.questions:
        raise ConfigError(
            f"train.questions is {train.questions}, and {task.name} has {len(left)} questions to train on: lower it, "
            f"or raise task.questions"
        )
    return TrainingData(replace(training, questions=left), test, shared)


def digest_of(questions: Sequence[Question]) -> str:
    """Return a hash of questions in their order: of all that they are asked, judged and rewarded by."""
    digest = hashlib.blake2b(digest_size=16)
    for question in questions:
        columns = json.dumps(question.key.get(COLUMNS), sort_keys=True, default=str)
        digest.update(json.dumps([question.id, question.digest, columns]).encode())
    return digest.hexdigest()


def _test_settings(task: TaskSettings, train: TrainSettings) -> TaskSettings:
    told = {"split": "test", "questions": train.eval_questions, "skip": 0}
    if train.eval_task is not None:
        return task.model_copy(update={**told, "name": train.eval_task})
    seed = task.seed + _TEST_SEED if task.name.startswith("rg:") else task.seed
    return task.model_copy(update={**told, "seed": seed})


def _held_out(task: Task, count: int) -> tuple[Task, Task]:
    """Return a file's questions without those to test with, and these."""
    count = min(count, len(task.questions) // _TESTED_SHARE)
    if not count:
        raise ConfigError(
            f"{task.name} has {len(task.questions)} questions, too few to hold some out: give train.eval_task a file "
            f"of its own, or leave train.eval_every out"
        )
    by_hash = sorted(task.questions, key=lambda question: hashlib.sha256(repr(_text(question)).encode()).digest())
    tested = {question.id for question in by_hash[:count]}
    kept = tuple(question for question in task.questions if question.id not in tested)
    out = tuple(question for question in task.questions if question.id in tested)
    return replace(task, questions=kept), replace(task, questions=out)


def _text(question: Question) -> tuple[str, ...]:
    return tuple(message["content"] for message in question.messages)
