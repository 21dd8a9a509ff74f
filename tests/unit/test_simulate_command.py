"""`palmette simulate`: from recorded events to numbers, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palmette.commands.app import app
from palmette.config import load_config
from palmette.errors import PalmetteError
from palmette.event_log import EventLog
from palmette.events import (
    NodeRecord,
    Occupancy,
    QuestionFinished,
    QuestionStarted,
    RunStarted,
    Session,
    TicksOfSize,
    UpdateDone,
    WaveDone,
)
from palmette.run.folder import recorded_values
from palmette.simulate.costs import fit_costs, nonnegative_fit
from palmette.simulate.measured import contention_of, measured_dispatch
from palmette.simulate.work import Question, Recorded, Wave, question_of, read_run, shared_ticks


def node(id: int, parent: int, tokens: int, *, finished: bool = False) -> NodeRecord:
    return NodeRecord(id, parent, tuple(range(tokens)), "", (0.0,) * tokens, finished, 0.5)


TREE = [node(1, 0, 4), node(2, 0, 6), node(3, 1, 3), node(4, 1, 2), node(5, 2, 1), node(6, 3, 7)]


def test_a_tree_becomes_waves_with_the_prefixes_that_they_continue() -> None:
    question = question_of(10, TREE, independent=False)
    assert question == Question(
        10,
        (
            Wave((4, 6), (10, 10), 10, (0, 5)),  # The second is the first, and goes on where that ends.
            Wave((3, 2, 1), (14, 14, 16), 10 + 4 + 6, (0, 2, 0)),
            Wave((7,), (17,), 10 + 4 + 3, (0,)),
        ),
    )
    assert (question.tokens, question.steps) == (23, 6)


def test_steps_of_the_same_text_so_far_share_their_lanes() -> None:
    after, other = (7,), (8,)
    steps = [(after, (1, 2, 3)), (after, (1, 2, 4, 5)), (other, (1, 2, 3)), (after, (1, 2, 3)), (after, (1, 2))]
    # The second samples its third token from a lane that is shared; who ends as others do has no lane at any time.
    assert shared_ticks([*steps, (after, (6,))]) == (0, 3, 0, 3, 2, 1)


def test_independent_branches_become_one_wave() -> None:
    chains = [node(1, 0, 4), node(2, 0, 6), node(3, 1, 3), node(5, 3, 2)]
    assert question_of(10, chains, independent=True) == Question(10, (Wave((6, 9), (10, 10), 10, (0, 5)),))


def test_costs_are_found_again_in_the_seconds_they_make() -> None:
    points = [(3.0, 40.0), (5.0, 10.0), (1.0, 200.0), (7.0, 90.0)]
    lanes = (3.0, 9.0, 100.0, 7.0)
    told = [(a, b, c, 0.25 * a + 0.01 * b + 0.04 * c) for (a, b), c in zip(points, lanes, strict=True)]
    assert nonnegative_fit(told) == pytest.approx((0.25, 0.01, 0.04))
    assert min(nonnegative_fit([(1.0, 10.0, 1.0, 0.5), (2.0, 20.0, 2.0, 1.0)])) >= 0, "rows that only follow ticks"


def record(folder: Path, *, questions: int = 6, updates: int = 0) -> Path:
    """Write a run whose ticks take 10 ms and 1 ms a row, its steps 5 ms, its questions 20 ms."""
    folder.mkdir()
    config = load_config(None, {"search.strategy": "beam", "search.width": 2, "train.questions": 3})
    with EventLog(folder) as log:
        log.write(RunStarted("0", recorded_values(config)))
        ticks, rows, policy = [], [], []
        for index in range(questions):
            name = f"q{index}"
            log.write(QuestionStarted(name, "", None, 10, ""))
            log.write(WaveDone(name, 0, tuple(TREE[:2]), {1: 2}, 0, 0, kv_as_held=True))
            log.write(WaveDone(name, 1, tuple(TREE[2:5]), {}, 0, 0, kv_as_held=True))
            log.write(QuestionFinished(name, {}, {}, 16, 0, 0, 0, 2, kv_as_held=True))
            ticks.append(9 + index)
            rows.append(16 if index < questions - 1 else 16 + index)
            policy.append(0.010 * ticks[-1] + 0.001 * rows[-1] * (1 + 10 / 16))
        spent: dict[str, tuple[float, ...]] = {"policy": tuple(policy), "reward": (0.005 * 5,) * questions}
        if questions:
            log.write(Occupancy(0, 1.0, tuple(ticks), tuple(rows), spent))
            log.write(Session(sum(policy) + questions * (0.025 + 0.020), 0, 0, questions, 0))
        for update in range(updates):
            log.write(UpdateDone(update + 1, 0, {}, {"rollout": 9.0, "update": 2.0, "reference": 1.0}, {}))
    return folder


def test_the_costs_of_a_recorded_run(tmp_path: Path) -> None:
    costs = fit_costs(read_run(record(tmp_path / "run")))
    found = (costs.tick_seconds, costs.row_seconds, costs.step_seconds, costs.question_seconds)
    assert found == pytest.approx((0.010, 0.001, 0.005, 0.020))


def test_costs_and_what_workers_cost_each_other_come_from_ticks_by_size() -> None:
    """Ticks take 10 ms and 1 ms a row; in the run of two workers everything takes a quarter longer."""

    def recorded(slower: float, *workers: str) -> Recorded:
        sizes = tuple(TicksOfSize(ticks, rows, slower * (0.01 * ticks + 0.001 * rows)) for ticks, rows in SIZES)
        spent: dict[str, tuple[float, ...]] = {"policy": (sum(size.seconds for size in sizes),)}
        spent["reward"] = (slower * 0.3,)
        events = tuple(Occupancy(0, 1, (0,), (0,), spent, worker, sizes) for worker in workers)
        return Recorded(load_config(None, {}), (Question(0, (Wave((1,) * 60, (0,) * 60, 0),)),) * len(workers),
                        (Session(9.0, 0, 0, 1, 0, driver_seconds=0.004 * len(workers)),), events)  # fmt: skip

    alone, beside = recorded(1.0, ""), recorded(1.25, "1", "2")
    costs = fit_costs(alone)
    assert (costs.tick_seconds, costs.row_seconds, costs.step_seconds) == pytest.approx((0.010, 0.001, 0.005))
    assert contention_of(alone, beside) == pytest.approx(0.25)
    assert measured_dispatch(beside) == pytest.approx(0.008)
    with pytest.raises(PalmetteError, match="at least 2 of them"):
        contention_of(alone, alone)


SIZES = ((3, 3), (10, 200), (40, 2000))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_table_csv_page_and_json(tmp_path: Path) -> None:
    folder = record(tmp_path / "run")
    table, page = tmp_path / "t.csv", tmp_path / "p.html"
    output = run(folder, "--workers", 16, "--questions", 40, "--csv", table, "--html", page)
    assert "from 6 measured questions" in output
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [int(row["workers"]) for row in rows] == [1, 2, 4, 8, 16]
    assert float(rows[0]["efficiency"]) == 1
    assert float(rows[0]["seconds"]) > float(rows[-1]["seconds"]) > 0
    text = page.read_text()
    assert "<svg" in text and "<script" not in text and "bend" in text
    values = json.loads(run(folder, "--workers", 16, "--questions", 40, "--json"))
    assert [point["seconds"] for point in values["points"]] == [float(row["seconds"]) for row in rows]
    assert values["routed"]["routing"] == "spread"
    assert values["bend"] in (1, 2, 4, 8, 16)


def test_devices_become_workers_by_the_plan(tmp_path: Path) -> None:
    folder = record(tmp_path / "run")
    values = json.loads(run(folder, "--devices", "4 nodes x 2x24GiB", "--questions", 20, "--json"))
    assert values["points"][-1]["workers"] == 8


def test_updates_take_their_rollouts_and_a_share_of_the_learners_work(tmp_path: Path) -> None:
    search, trained = record(tmp_path / "run"), record(tmp_path / "trained", questions=0, updates=2)
    arguments = [search, "--workers", 2, "--train", trained, "--updates", 5, "--json", "--dispatch", 0]
    one, three = (json.loads(run(*arguments, "--ranks", ranks)) for ranks in (1, 3))
    saved = one["points"][0]["per_update"] - three["points"][0]["per_update"]
    assert saved == pytest.approx(3.0 - 1.0), "3 s of reference and update, on 3 ranks 1 s"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere", "--workers", "2"], "no run folder"),
        (["empty", "--workers", "2"], "no finished question"),
        (["trained", "--workers", "2"], "is a training run, which records no steps"),
        (["run", "--workers", "2", "--questions", "0"], "--questions is 0: give 1 to"),
        (["run"], "give --devices, like '16 nodes x 8x80GiB', or --workers"),
        (["run", "--devices", "sixteen nodes"], "write a cluster like '16 nodes x 8x80GiB'"),
        (["run", "--devices", "0 nodes x 8x80GiB"], "1 to 1,024 nodes"),
        (["run", "--devices", "4 nodes x 1x80GiB,1x24GiB"], "have to be equal"),
        (["run", "--devices", "8x80"], "80 of what?"),
        (["run", "--workers", "2", "--failures", "1000000"], "never let the run end"),
        (["run", "--workers", "2", "--routing", "best"], "choose affine or spread"),
        (["run", "--workers", "2", "--train", "run"], "has no update"),
    ],
)
def test_bad_input_is_told_in_one_line(tmp_path: Path, arguments: list[str], told: str) -> None:
    record(tmp_path / "run")
    record(tmp_path / "empty", questions=0)
    record(tmp_path / "trained", questions=0, updates=1)
    places = [str(tmp_path / each) if each in ("run", "nowhere", "empty", "trained") else each for each in arguments]
    with pytest.raises(PalmetteError) as error:
        run(*places)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
