import json
import re
from pathlib import Path

import pytest

from palmette.errors import ConfigError, RunError
from palmette.event_log import EventLog, read_events
from palmette.events import (
    Chosen,
    Event,
    MemoryTimeline,
    NodeRecord,
    OomRetry,
    PhasePeak,
    QuestionFinished,
    QuestionStarted,
    Reclaimed,
    RunStarted,
    Session,
    WaveDone,
)
from palmette.report import compare as comparison
from palmette.report.compare import Comparison, compare
from palmette.report.memory_timeline import memory_timelines
from palmette.report.page import write_page
from palmette.report.table import summary_values
from palmette.score.judges.math import MathJudge
from palmette.search.rejudge import Rejudge
from palmette.search.summary import Accuracy, summarize
from palmette.settings import Config
from palmette.tasks.task import Question

HOSTILE = "</script><script>alert(1)</script>{{data}}{{script}}<img src=x onerror=alert(2)>\u2028"

QUESTIONS = [Question(name, ({"role": "user", "content": "2+2"},), "4") for name in "ab"]


def node(number: int, parent: int, text: str, score: float, *, finished: bool = False) -> NodeRecord:
    return NodeRecord(number, parent, (number, 2), text, (-0.1, -0.2), finished, score)


def finished(question: str, outcome: str, leaves: dict[str, int], kv: int) -> QuestionFinished:
    chosen = {vote: Chosen("4", outcome) for vote in ("best", "majority", "weighted")}
    return QuestionFinished(question, chosen, leaves, 10, kv - 2.0, kv, 3 * kv, 2, kv_as_held=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        log.write(QuestionStarted("a", "void", "4", 3, "d"))
        log.write(WaveDone("a", 0, (node(1, 0, "void", 0.1),), {}, 5, 5))
        log.write(QuestionStarted("a", HOSTILE, "4", 3, "d"))
        log.write(
            WaveDone("a", 0, (node(1, 0, "x\n", 0.5), node(2, 0, HOSTILE, 0.9, finished=True)), {1: 1}, 5, 5, {1: 0})
        )
        log.write(WaveDone("a", 1, (node(3, 1, "=4", 0.4, finished=True),), {}, 6, 6))
        log.write(finished("a", "correct", {"correct": 1, "wrong": 1}, 20))
        log.write(QuestionStarted("b", "2+2", "4", 3, "d"))
        log.write(WaveDone("b", 0, (node(1, 0, "y", 0.4, finished=True),), {}, 6, 6))
        log.write(Session(2.5, 7, 3, 1, 64))
        log.write(finished("b", "timed_out", {"timed_out": 4}, 40))
        log.write(Session(1.5, 5, 2, 1, 64))
        log.write(QuestionStarted("c", "unfinished", "4", 3, "d"))
    return tmp_path


def test_a_question_without_a_judged_leaf_is_left_out_of_the_shares(folder: Path) -> None:
    with EventLog(folder) as log:
        log.write(finished("b", "wrong", {"correct": 0}, 40))
    assert summarize(read_events(folder)).single == Accuracy(0.5, 1, {"correct": 1, "wrong": 1})


@pytest.fixture
def compared(folder: Path) -> Comparison:
    return compare([folder], lambda config: Rejudge(MathJudge(3600), QUESTIONS))


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


def test_a_question_is_shown_wave_by_wave_in_its_last_attempt(compared: Comparison) -> None:
    (run,) = compared.runs
    question, other = run["questions"]
    assert (question["parents"], question["tokens"], question["scores"]) == ([0, 0, 1], [2, 2, 2], [0.5, 0.9, 0.4])
    assert question["texts"] == ["x\n", HOSTILE, "=4"]
    assert (question["finished"], question["stopped"]) == ([2, 3], [])
    first, second = question["waves"]
    assert (first["nodes"], first["children"], first["clusters"]) == (2, [(1, 1)], [(1, 0)])
    assert (first["kv"], first["shared"]) == (5, 3)  # the prompt lies on both paths
    assert (second["nodes"], second["children"], second["shared"]) == (1, [], 0)
    assert len(other["waves"]) == 1


def test_a_question_has_each_ballot_with_the_outcome_of_its_answer(compared: Comparison) -> None:
    question = compared.runs[0]["questions"][0]
    hostile, (leaf, answer, weight, candidate) = question["ballots"]
    assert (hostile[0], question["outcomes"][hostile[3]]) == (2, "wrong")
    assert (leaf, answer, weight) == (3, "4", pytest.approx(0.2))
    assert question["outcomes"][candidate] == "correct"


def test_answers_to_questions_that_are_gone_are_told_but_not_judged(folder: Path) -> None:
    question = compare([folder], lambda config: Rejudge(MathJudge(3600), [])).runs[0]["questions"][0]
    assert (len(question["ballots"]), question["outcomes"]) == (2, [None, "correct"])
    assert question["choices"]["best"] == ["4", "correct"]


def test_a_leaf_at_the_depth_limit_is_stopped_not_pruned(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config.model_validate({"search": {"depth": 1}}).model_dump(mode="json")))
        log.write(QuestionStarted("a", "2+2", "4", 3, "d"))
        log.write(WaveDone("a", 0, (node(1, 0, "x", 0.5),), {}, 5, 5))
        log.write(finished("a", "unparseable", {"unparseable": 1}, 5))
    assert compare([tmp_path], lambda config: Rejudge(MathJudge(3600), [])).runs[0]["questions"][0]["stopped"] == [1]


def test_trees_are_left_out_when_the_page_would_grow_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = len(json.dumps(compare([folder], lambda config: Rejudge(MathJudge(3600), [])).runs[0]["questions"]))
    monkeypatch.setattr(comparison, "MOST_BYTES", whole - 100)
    (run,) = compare([folder], lambda config: Rejudge(MathJudge(3600), [])).runs
    assert (len(run["questions"]), run["results"]["questions"]) == (1, 2)


def test_best_of_n_comes_from_the_widest_run_that_was_judged_again(folder: Path, compared: Comparison) -> None:
    (points,) = compared.curves.values()
    assert [point.branches for point in points] == [1, 2, 4, 8, 16]  # the folder's config has the default width
    gone = compare([folder], lambda config: Rejudge(MathJudge(3600), []))
    assert not gone.curves
    assert gone.rows[0].values["bon_same_tokens"] is None


def test_model_text_stands_in_the_page_as_data_only(folder: Path, compared: Comparison) -> None:
    text = write_page(compared, folder / "page.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<script", text)) == 2  # the data and our own
    assert "<img" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert data
    assert json.loads(data[1])["runs"][0]["questions"][0]["prompt"] == HOSTILE


def test_the_page_allows_no_script_but_its_own_and_no_network(folder: Path, compared: Comparison) -> None:
    text = write_page(compared, folder / "page.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[A-Za-z0-9+/]{43}='", policy[1]
    )
    assert not re.findall(r'(?:src|href)="', text)


def test_a_page_that_cannot_be_written_leaves_nothing_behind(compared: Comparison, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write the report"):
        write_page(compared, tmp_path / "missing" / "page.html")
    with pytest.raises(RunError, match="cannot write the report"):
        write_page(compared, tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match="name a file"):
        write_page(compared, Path("/"))
    assert not list(tmp_path.glob(".report*"))


def test_values_for_machines_keep_results_apart_from_cost(folder: Path) -> None:
    values = summary_values(summarize(read_events(folder)))
    assert json.loads(json.dumps(values)) == values
    assert "seconds" not in values["results"]
    assert values["cost"]["seconds"] == 4.0


def timeline(began: float, *held: int) -> MemoryTimeline:
    peak = PhasePeak(HOSTILE, 2, 1.5, max(held), 900)
    moments = tuple(float(place) for place in range(len(held)))
    return MemoryTimeline("cpu", began, 1000, moments, held, (None, *[0] * (len(held) - 1)), (peak,), 950, 80)


def retry(began: float, moment: float) -> OomRetry:
    return OomRetry("wave", "node", 8, 4, HOSTILE, 5, 10, 15, 700, began=began, moment=moment)


def test_of_each_process_the_last_timeline_is_drawn_with_its_own_retries(folder: Path) -> None:
    told: list[Event] = [
        timeline(1.0, 100),
        retry(1.0, 0.5),
        timeline(1.0, 100, 700),
        timeline(2.0, 50),
        retry(3.0, 0.1),
    ]
    first, second = memory_timelines([*told, Reclaimed("load", (7, -2), 60, 0.1, 2.0, 0.3)])
    assert first["held"] == [100, 700]
    assert first["places"] == [None, 0]
    assert [(one["moment"], one["tried"], one["limit"]) for one in first["retries"]] == [(0.5, 8, 4)]
    assert first["phases"] == [{"name": HOSTILE, "times": 2, "seconds": 1.5, "peak": 700, "planned": 900}]
    assert (second["held"], second["retries"]) == ([50], [])
    assert second["reclaimed"] == [{"moment": 0.3, "held": 60, "after": "load", "freed": 5}]


def test_a_run_without_a_meter_has_no_memory_to_draw(compared: Comparison) -> None:
    assert compared.runs[0]["memory"] == []


def test_texts_of_memory_events_cannot_leave_the_data(folder: Path, tmp_path: Path) -> None:
    with EventLog(folder) as log:
        log.write(timeline(1.0, 100, 700))
        log.write(retry(1.0, 0.5))
    told = compare([folder], lambda config: Rejudge(MathJudge(3600), QUESTIONS))
    page = write_page(told, tmp_path / "memory.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert told.runs[0]["memory"][0]["retries"][0]["reason"] == HOSTILE


def test_a_timeline_that_disagrees_with_itself_is_cut_to_what_fits(folder: Path) -> None:
    broken = MemoryTimeline("cpu", 1.0, 10, (0.0, 1.0, 2.0), (1, 2), (0, 5, 0), ())
    assert memory_timelines([broken])[0]["places"] == [None, None]
