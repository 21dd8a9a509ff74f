import json
import re
from pathlib import Path

import pytest

from palmette.config import Config
from palmette.errors import ConfigError, RunError
from palmette.events import (
    Chosen,
    EventLog,
    NodeRecord,
    QuestionFinished,
    QuestionStarted,
    RunStarted,
    Session,
    WaveDone,
    read_events,
)
from palmette.report.page import write_page
from palmette.report.story import run_story
from palmette.report.table import summary_values
from palmette.search.summary import Accuracy, summarize

HOSTILE = "</script><script>alert(1)</script>{{data}}{{script}}<img src=x onerror=alert(2)>\u2028"


def node(number: int, parent: int, text: str, score: float, *, finished: bool = False) -> NodeRecord:
    return NodeRecord(number, parent, (1, 2), text, (-0.1, -0.2), finished, score)


def finished(question: str, outcome: str, leaves: dict[str, int], kv: int) -> QuestionFinished:
    chosen = {vote: Chosen("4", outcome) for vote in ("best", "majority", "weighted")}
    return QuestionFinished(question, chosen, leaves, 10, kv - 2.0, kv, 3 * kv, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        log.write(QuestionStarted("a", "void", "4", 3, "d"))
        log.write(WaveDone("a", 0, (node(1, 0, "void", 0.1),), {}, 5, 5))
        log.write(QuestionStarted("a", HOSTILE, "4", 3, "d"))
        log.write(WaveDone("a", 0, (node(1, 0, "x\n", 0.5), node(2, 0, HOSTILE, 0.9, finished=True)), {1: 1}, 5, 5))
        log.write(WaveDone("a", 1, (node(3, 1, "y", 0.4, finished=True),), {}, 6, 6))
        log.write(finished("a", "correct", {"correct": 1, "wrong": 1}, 20))
        log.write(QuestionStarted("b", "2+2", "4", 3, "d"))
        log.write(WaveDone("b", 0, (node(1, 0, "y", 0.4, finished=True),), {}, 6, 6))
        log.write(Session(2.5, 7, 3, 1, 64))
        log.write(finished("b", "timed_out", {"timed_out": 4}, 40))
        log.write(Session(1.5, 5, 2, 1, 64))
        log.write(QuestionStarted("c", "unfinished", "4", 3, "d"))
    return tmp_path


def test_a_summary_adds_up_to_hand_worked_numbers(folder: Path) -> None:
    summary = summarize(read_events(folder))
    assert summary.questions == 2
    assert summary.votes["best"] == Accuracy(1, 2, {"correct": 1, "timed_out": 1})
    assert summary.single.share == 0.25  # half of one question's leaves, none of the other's
    assert summary.any_leaf.share == 0.5
    assert (summary.mean_kv_tokens, summary.peak_kv_tokens, summary.peak_separate_kv_tokens) == (28.0, 40, 120)
    assert (summary.seconds, summary.policy_calls, summary.reward_calls) == (4.0, 12, 5)


def test_the_interval_is_wilsons() -> None:
    low, high = Accuracy(8, 10, {}).interval
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)  # Wilson score, as in Agresti and Coull (1998)
    assert Accuracy(0, 0, {}).interval == (0.0, 1.0)


def test_a_run_without_its_first_event_is_refused() -> None:
    with pytest.raises(RunError, match="no first event"):
        summarize([])


def test_a_story_keeps_the_last_attempt_of_a_question_and_ranks_its_solutions(folder: Path) -> None:
    story = run_story(folder)["stories"][0]
    assert [solution["node"] for solution in story["solutions"]] == [2, 3]
    assert story["solutions"][1]["steps"] == [("x\n", 0.5), ("y", 0.4)]
    assert story["solutions"][1]["score"] == pytest.approx(0.2)
    assert len(run_story(folder)["stories"]) == 2


def test_model_text_stands_in_the_page_as_data_only(folder: Path) -> None:
    text = write_page([folder], folder / "page.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<script", text)) == 2  # the data and our own
    assert "<img" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert data
    assert json.loads(data[1])[0]["stories"][0]["prompt"] == HOSTILE


def test_the_page_allows_no_script_but_its_own_and_no_network(folder: Path) -> None:
    text = write_page([folder], folder / "page.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[A-Za-z0-9+/]{43}='", policy[1]
    )
    assert not re.findall(r'(?:src|href)="', text)


def test_a_page_that_cannot_be_written_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write the report"):
        write_page([folder], tmp_path / "missing" / "page.html")
    with pytest.raises(RunError, match="cannot write the report"):
        write_page([folder], tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match="name a file"):
        write_page([folder], Path("/"))
    assert not list(tmp_path.glob(".report*"))


def test_values_for_machines_keep_results_apart_from_cost(folder: Path) -> None:
    values = summary_values(summarize(read_events(folder)))
    assert json.loads(json.dumps(values)) == values
    assert "seconds" not in values["results"]
    assert values["cost"]["seconds"] == 4.0
