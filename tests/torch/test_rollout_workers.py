"""Rollouts of training on workers, without Ray: the same samples and weights, whatever happens to workers."""

import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from palmette import Searcher, load_task
from palmette.config import load_config
from palmette.errors import BackendError, ConfigError, RunError
from palmette.event_log import read_events
from palmette.events import Evaluated, Noticed, UpdateDone, WorkerEnded
from palmette.run.cluster.rollouts import start
from palmette.run.cluster.rollouts.drive import WorkerRollouts
from palmette.run.cluster.rollouts.wire import result_of, result_values
from palmette.run.cluster.rollouts.worker import RolloutWorker
from palmette.run.train import TrainingRun
from palmette.run.training_checks import check_training
from palmette.scale.connect import connected
from palmette.scale.crew import Loss, Member
from palmette.scale.fit import Demand, NodeRoom
from palmette.scale.transport.object_store import StoreSender
from palmette.scale_settings import ScaleSettings
from palmette.settings import Config
from tests.in_process_crew import Fate, InProcessCrew
from tests.scale.runs import FLAGS

SMALL: dict[str, Any] = {
    "policy.model": "seedling", "task.name": "ladder", "task.grade": 2, "task.questions": 20, "search.width": 4,
    "search.total_tokens": 50, "train.updates": 2, "train.questions": 4, "train.learning_rate": 1e-3,
    "train.eval_every": 2, "train.eval_questions": 3, "memory.sample_seconds": 3600.0,
}  # fmt: skip
NODES = [NodeRoom("here", 8, 0, 2**36)]


class FakeRay:
    """Ray's object store: an actor is called with the array itself. `sizes` are those of all that was put into it."""

    sizes: ClassVar[list[int]] = []

    def put(self, array: Any) -> Any:
        self.sizes.append(array.nbytes)
        array = array.copy()
        array.flags.writeable = False
        return array


def config_of(workers: int | None = None, **changed: Any) -> Config:
    told = {key.replace("__", "."): value for key, value in changed.items()}
    return load_config(None, {**SMALL, "scale.workers": workers, **told})


class Ran:
    """One training run with workers in this process."""

    def __init__(self, config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch, fate: Fate = lambda *_: None):
        @contextmanager
        def no_cluster(*_: object) -> Iterator[FakeRay]:
            yield FakeRay()

        def crew(ray: Any, worker: type, demand: Demand, arguments: Any) -> InProcessCrew:
            return InProcessCrew(arguments(Member("any"))[0], fate, worker=worker)

        monkeypatch.setattr(start, "connected", no_cluster)
        monkeypatch.setattr(start, "node_rooms", lambda ray: NODES)
        monkeypatch.setattr(start, "Crew", crew)
        folder.mkdir()
        with TrainingRun(config, folder) as run:
            self.seen = list(run.updates())
        last = folder / "checkpoints" / f"update-{config.train.updates:08d}" / "model.safetensors"
        self.weights = load_file(last)
        self.updates = [event for event in self.seen if isinstance(event, UpdateDone)]
        self.notices = [event.text for event in self.seen if isinstance(event, Noticed) and event.about == "worker"]
        self.ends = [event for event in read_events(folder) if isinstance(event, WorkerEnded)]

    def is_as(self, other: "Ran") -> bool:
        """Whether samples, evaluations and final weights are the same, bit for bit."""
        same = [event.samples for event in self.updates] == [event.samples for event in other.updates]
        tested = [
            [(event.single, event.elected) for event in ran.seen if isinstance(event, Evaluated)]
            for ran in (self, other)
        ]
        return (
            same
            and tested[0] == tested[1]
            and all(torch.equal(weight, other.weights[name]) for name, weight in self.weights.items())
        )


@pytest.fixture(autouse=True)
def _answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.run.cluster.rollouts.worker.ANSWER_SECONDS", 0.01)


def test_samples_and_weights_are_those_of_the_plain_run_whatever_happens_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Ran(config_of(), tmp_path / "plain", monkeypatch)
    assert any(event.numbers["steps"] for event in plain.updates)  # Else weights would be the same in any case.
    one = Ran(config_of(1), tmp_path / "one", monkeypatch)
    assert one.is_as(plain) and not one.notices
    assert [end.questions for end in one.ends] == [4 + 4 + 3 + 3]  # Two updates, two evaluations.
    done: set[str] = set()

    def fate(member: Member, method: str, count: int) -> Loss | None:
        """Lose a worker with questions, give one other weights, and damage weights on their way: each once."""
        actor = member.actor
        if member.name == "1" and method == "exchange" and "lost" not in done:
            done.add("lost")
            return Loss(member, method, "its process ended")
        if member.name == "2" and method == "exchange" and "old" not in done:
            done.add("old")
            actor._version = 99
        if member.name == "2" and method == "take_weights" and count == 2:
            take = actor.take_weights
            actor.take_weights = lambda label, ticket: take(label, ticket[::-1].copy())
        elif "take_weights" in vars(actor):
            del actor.take_weights
        return None

    disturbed = Ran(config_of(2), tmp_path / "two", monkeypatch, fate)
    assert disturbed.is_as(plain)
    told = "\n".join(disturbed.notices)
    assert "worker 1 on" in told and "is lost: its process ended; 2 questions will be asked again" in told
    assert "it has weights 99, asked for were 1. It is sent them again" in told
    assert "wrong checksum. It is sent them again" in told
    assert [end.lost for end in disturbed.ends] == ["its process ended", "", ""]


def test_rollouts_ahead_of_updates_are_written_by_workers_while_this_process_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(1, scale__staleness=1, train__updates=3, train__eval_every=0)
    first = Ran(config, tmp_path / "first", monkeypatch)
    assert [event.numbers["weights_age"] for event in first.updates] == [0, 1, 1]
    assert first.updates[1].numbers["server_ratio_high"] > 1.001  # Written before the first update.


def test_adapters_alone_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRay.sizes.clear()
    config = config_of(1, train__method="lora", train__lora_rank=2, train__eval_every=0, train__updates=1)
    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError):  # There is no model.safetensors: an adapter was trained.
        Ran(config, folder, monkeypatch)
    adapter = folder / "checkpoints" / "update-00000001" / "adapter_model.safetensors"
    (sent,) = FakeRay.sizes
    assert 0.9 < sent / sum(tensor.nbytes for tensor in load_file(adapter).values()) < 1.5


def rollouts(fate: Fate, tell: Any = lambda text: None, **settings: Any) -> WorkerRollouts:
    """Two workers that have no model yet, with weights of no model."""
    crew: Any = InProcessCrew("{}", fate, worker=RolloutWorker)
    scale = ScaleSettings(workers=2, **settings)
    made = WorkerRollouts(
        scale,
        2,
        crew,
        Demand(1),
        StoreSender(FakeRay()),
        lambda: NODES,
        tell,
        lambda event: None,
    )
    made.publish("first", lambda: {"weight": torch.zeros(3)})
    made.start(2)
    return made


def test_workers_that_do_not_come_or_do_not_answer_are_named() -> None:
    task, told = load_task("ladder", questions=2), list[str]()
    late = rollouts(lambda member, method, _: Loss(member, method, "it did not answer", was_late=True), told.append)
    with pytest.raises(BackendError, match=r"no worker is left, the last was worker 2: its process did not start"):
        late.search("rollout", task, None, task.questions, 1)
    assert told[0].startswith("worker 1 is lost: its process did not start within 5 min 00 s (scale.start_seconds)")
    lost = rollouts(lambda member, method, _: Loss(member, method, "its process ended"), restarts=1)
    with pytest.raises(BackendError, match="no worker is left, the last was worker 2: its process ended"):
        lost.search("rollout", task, None, task.questions, 1)


def test_a_worker_never_searches_with_other_weights_than_it_is_asked_for() -> None:
    worker = RolloutWorker("{}", "", "1")
    phase = {"number": 1, "kind": "rollout", "seed": 0, "version": 2, "room": None, "task": ""}
    assert json.loads(worker.exchange(json.dumps(phase), "[]")) == {"refused": True, "version": None}
    worker._version = 1
    assert json.loads(worker.exchange(json.dumps(phase), "[]")) == {"refused": True, "version": 1}


def test_results_come_over_with_all_their_digits_and_damaged_ones_are_refused() -> None:
    result = Searcher(settings={**FLAGS, "policy.model": "tests.fake_policy:InProcess"}).search("1+1")
    values, questions = json.loads(json.dumps(result_values(result))), {result.question.id: result.question}
    assert result_of(values, questions, "worker 1") == result
    for key, wrong in (("question", "other"), ("tree", {"prompt_tokens": []}), ("ballots", [{"leaf": 1}])):
        with pytest.raises(RunError, match="worker 1 told of a result that is none"):
            result_of({**values, key: wrong}, questions, "worker 1")


def test_what_workers_cannot_do_is_told_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="its servers write the rollouts"):
        check_training(config_of(2, policy__backend="sglang", policy__address="http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="nothing would run there: set scale.workers"):
        check_training(config_of(None, scale__address="auto"))


def test_workers_and_ranks_of_one_run_share_the_connection_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    ray = types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **given: called.append(f"init {given['object_store_memory'] >> 20} MiB"),
        shutdown=lambda: called.append("shutdown"),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("palmette.scale.connect.find_spec", lambda name: name)
    settings = ScaleSettings(workers=1)
    ranks = connected(settings, 1)
    ranks.__enter__()
    with connected(settings, 1):
        ranks.__exit__(None, None, None)  # Ranks are lost and end, workers stay.
        assert called == ["init 128 MiB"]
    with connected(settings, 1, 2**30):
        assert called == ["init 128 MiB", "shutdown", "init 1152 MiB"]
