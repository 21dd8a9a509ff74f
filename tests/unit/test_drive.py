"""A search on workers without Ray: the driver's loop, the worker's calls, and what happens when a worker is lost."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palmette import Searcher
from palmette.config import load_config
from palmette.errors import BackendError, ConfigError, PalmetteError, RunError
from palmette.event_log import encode_event
from palmette.events import Event, QuestionTimed, Session, WorkerEnded
from palmette.run.cluster.drive import Drive
from palmette.run.cluster.intake import Intake
from palmette.run.cluster.wire import config_text, read_answer, task_text
from palmette.run.cluster.worker import SearchWorker
from palmette.run.search import Progress, judge_of
from palmette.scale.crew import Loss, Member
from palmette.scale.fit import Demand, NodeRoom
from palmette.search.result import SearchResult
from palmette.settings import Config
from palmette.tasks.ask import as_task
from tests.in_process_crew import Fate, InProcessCrew

QUESTIONS = [f"{number}+{number}" for number in range(7)]
SETTINGS = {
    "policy.model": "tests.fake_policy:InProcess", "reward.model": None, "search.width": 3, "search.depth": 4,
    "search.step_tokens": 12, "search.total_tokens": 30, "search.questions_in_flight": 2, "scale.workers": 3,
    "memory.sample_seconds": 3600.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.run.cluster.worker._ANSWER_SECONDS", 0.01)


NODES = [NodeRoom("here", 8, 0, 2**33)]


class Ran:
    """One search by workers in this process."""

    def __init__(self, fate: Fate = lambda *_: None, changed: dict[str, Any] | None = None, **settings: Any) -> None:
        self.config = load_config(None, {**SETTINGS, **{f"scale.{key}": value for key, value in settings.items()}})
        self.task = as_task(QUESTIONS, self.config.task)[0]
        self.events: list[Event] = []
        self.heard: list[Progress] = []
        self.results: list[SearchResult] = []
        self.done: set[str] = set()
        self.crew = InProcessCrew(config_text(self.config, self.task), fate, changed)

    def run(self, done: int = 0) -> "Ran":
        questions = {question.id: question for question in self.task.questions}
        self.done = set(list(questions)[:done])
        intake = Intake(questions, judge_of(self.config, self.task), self.config.search, self.events.append)
        crew: Any = self.crew
        drive = Drive(
            self.config, self.task, crew, Demand(4), intake, self.done, lambda: None, self.events.append,
            self.heard.append,
        )  # fmt: skip
        for result in drive.run([Member("1"), Member("2"), Member("3")], lambda: NODES):
            self.results.append(result)
        return self

    def trees(self) -> dict[str, Any]:
        return {result.question.id: result.to_dict() for result in self.results}

    def ends(self) -> list[WorkerEnded]:
        return [event for event in self.events if isinstance(event, WorkerEnded)]


def plain(config: Config) -> dict[str, Any]:
    alone = load_config(config, {"scale.workers": None})
    return {result.question.id: result.to_dict() for result in Searcher(config=alone).search(QUESTIONS)}


def lost(name: str, method: str, count: int, *, was_late: bool = False) -> Fate:
    """Return a fate: this worker is lost at this call."""

    def fate(member: Member, called: str, calls: int) -> Loss | None:
        if (member.name, called, calls) == (name, method, count):
            return Loss(member, called, "its process ended", was_late)
        return None

    return fate


def test_three_workers_find_what_one_process_finds_and_each_does_its_share() -> None:
    ran = Ran().run()
    assert ran.trees() == plain(ran.config)
    assert [end.lost for end in ran.ends()] == ["", "", ""]
    assert sum(end.questions for end in ran.ends()) == 7 and min(end.questions for end in ran.ends()) > 0
    assert {event.worker for event in ran.events if isinstance(event, QuestionTimed)} == {"1", "2", "3"}
    (session,) = (event for event in ran.events if isinstance(event, Session))
    assert session.questions == 7 and session.kv_bytes_per_token == 1
    assert ran.heard[-1].done == 7 and [worker.name for worker in ran.heard[-1].workers] == ["1", "2", "3"]


def test_finished_questions_are_not_asked_again() -> None:
    ran = Ran().run(done=4)
    assert len(ran.results) == 3 and ran.trees().keys().isdisjoint(ran.done)
    assert ran.heard[-1].done == 7


@pytest.mark.parametrize("call", [("1", "hello"), ("1", "load"), ("1", "check"), ("2", "begin"), ("2", "exchange")])
def test_a_worker_that_is_lost_at_any_call_is_started_again_and_its_questions_are_asked_again(
    call: tuple[str, str],
) -> None:
    ran = Ran(lost(*call, 0)).run()
    assert ran.trees() == plain(ran.config)
    assert [member.lives for member in ran.crew.members] == [2 if name == call[0] else 1 for name in "123"]
    assert "is lost: its process ended" in ran.heard[-1].notices[0]


def test_a_worker_that_finds_no_place_is_told_of_and_the_others_do_its_share() -> None:
    ran = Ran(lost("3", "hello", 0, was_late=True)).run()
    assert ran.trees() == plain(ran.config)
    (notice,) = ran.heard[-1].notices
    assert "worker 3 is lost: it found no place within 5 min 00 s (scale.start_seconds): 3 workers of 4 cores" in notice
    assert "here (8 cores, 8.0 GiB). Fits: scale.workers=2" in notice and "not started again" in notice


def test_a_worker_without_a_sign_of_progress_is_told_of() -> None:
    ran = Ran(lost("1", "exchange", 0, was_late=True)).run()
    assert "no token and no event for 10 min 00 s (scale.answer_seconds)" in ran.heard[-1].notices[0]
    assert ran.trees() == plain(ran.config)


def test_without_any_worker_left_the_run_ends_with_the_last_reason() -> None:
    with pytest.raises(BackendError, match=r"no worker is left, the last was worker \d on .*: its process ended. 0 of"):
        Ran(lambda member, called, _: Loss(member, called, "its process ended") if called == "load" else None).run()


def test_a_question_that_takes_every_worker_with_it_ends_the_run_by_name() -> None:
    def fate(member: Member, called: str, calls: int) -> Loss | None:
        return Loss(member, called, "its process ended") if called == "exchange" else None

    with pytest.raises(RunError, match=r"questions?, .*: 2 workers were lost that had them \(scale.restarts 1\)"):
        Ran(fate, restarts=1).run()


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(BackendError, match=r"worker 1 on .* has palmette 0.0.9, the driver .* on every node"):
        Ran(changed={"version": "0.0.9"}).run()


def test_a_wrong_clock_is_told_of_and_corrected() -> None:
    ran = Ran(changed={"clock": time.time() + 3600}).run()
    assert "ahead of ours: times of its events are corrected" in ran.heard[-1].notices[0]
    began = [event.began for event in ran.events if event.kind in ("memory_timeline", "occupancy")]  # type: ignore[union-attr]
    assert began and max(began) < time.time() - 1800


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ('{"events": ["{}"], "tokens": 0, "held_bytes": 0}', "an event of worker .*: damaged"),
        ('{"events": [], "tokens": 0', "something else than JSON"),
        ("[]", "something else than JSON"),
        (json.dumps({"error": "BudgetError", "message": "does not fit"}), r"worker \d on .*: does not fit"),
        (json.dumps({"error": "SystemExit", "message": "x"}), r"worker \d on .*: x"),
        (
            json.dumps({"events": [encode_event(WorkerEnded("1", "", 0, 0, 0, 0))], "tokens": 0, "held_bytes": 0}),
            "nothing that workers tell",
        ),
    ],
)
def test_what_a_worker_has_no_reason_to_tell_ends_the_run(
    answer: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchWorker, "exchange", lambda *_: answer)
    with pytest.raises(PalmetteError, match=told):
        Ran().run()


def test_an_error_of_a_worker_s_search_is_raised_by_the_driver() -> None:
    failing = Ran()
    failing.config = load_config(failing.config, {"policy.model": "tests.unit.test_drive:Failing"})
    failing.crew = InProcessCrew(config_text(failing.config, failing.task))
    with pytest.raises(BackendError, match=r"worker \d on .*: backend Failing failed in expand: ValueError: no more"):
        failing.run()


def test_objects_of_this_process_are_not_sent_to_workers() -> None:
    def by_length(frontier: Any, width: int) -> dict[int, int]:
        return {frontier.leaves[0]: width}

    searcher = Searcher("tests.fake_policy:InProcess", None, by_length, settings={"scale.workers": 2})
    with pytest.raises(ConfigError, match=r"strategy .*by_length is an object of this process.*package.module:name"):
        searcher.search(QUESTIONS)


def test_a_worker_searches_what_it_is_sent_and_tells_when_it_is_done() -> None:
    config = load_config(None, SETTINGS)
    task = as_task(QUESTIONS, config.task)[0]
    worker = SearchWorker(config_text(config, task), "", "1")
    calls: list[Callable[[], str]] = [worker.hello, worker.load, lambda: worker.check(task_text(task, task.questions))]
    answers = [read_answer(call(), "it") for call in calls]
    assert answers[2]["questions"] == [question.id for question in task.questions] and answers[2]["room"] is None
    read_answer(worker.begin(task_text(task, task.questions[:1]), "null"), "it")
    assert read_answer(worker.exchange("[]"), "it")["tokens"] == 0
    kinds = [json.loads(line)["kind"] for line in read_answer(worker.finish(), "it")["events"]]
    assert kinds[-3:] == ["occupancy", "session", "memory_timeline"]


def test_an_unwritable_folder_and_a_taken_one_are_told_before_ray_is_started(tmp_path: Path) -> None:
    from palmette.event_log import EventLog
    from palmette.run.cluster.search import search_on_workers

    config = load_config(None, SETTINGS)
    task = as_task(QUESTIONS, config.task)[0]
    with EventLog(tmp_path), pytest.raises(RunError, match="is being written by another process"):
        next(search_on_workers(config, task, tmp_path))


def test_without_ray_the_settings_that_need_it_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.scale.connect.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"need Ray: pip install 'palmette\[scale\]'"):
        Searcher(settings=SETTINGS).search(QUESTIONS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_of_ray_is_imported_without_its_settings() -> None:
    program = (
        "import sys; from palmette import Searcher; import palmette.commands.app; "
        "Searcher('tests.fake_policy:InProcess', None, width=2, total_tokens=8).search('1+1'); "
        "sys.exit(len({'ray', 'grpc'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True)


class Failing:
    """A policy that cannot generate."""

    kv_bytes_per_token = 1
    context_tokens = None
    calls = 0

    def encode(self, messages: Any) -> tuple[int, ...]:
        return (1,)

    def expand(self, expansions: Any) -> Any:
        raise ValueError("no more")

    def release(self, question: str, nodes: Any) -> None:
        pass
