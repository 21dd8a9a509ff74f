"""Simulated runs against numbers worked out by hand."""

import random
from dataclasses import replace

import pytest

from palmette.errors import ConfigError, RunError
from palmette.simulate.costs import Costs
from palmette.simulate.scaling import bend, curve, draw, sizes, with_workers
from palmette.simulate.setup import Learner, Setup
from palmette.simulate.simulation import simulate
from palmette.simulate.work import Question, Wave

TICK = Costs(tick_seconds=1.0, row_seconds=0.0)
"""A tick takes a second, whatever its rows."""


def asked(*waves: tuple[int, ...], prompt: int = 0) -> Question:
    """Return a question with these steps; every wave goes on from the prompt and one step of each before it."""
    held, made = prompt, []
    for steps in waves:
        made.append(Wave(steps, (held,) * len(steps), held))
        held += max(steps)
    return Question(prompt, tuple(made))


def test_two_workers_and_three_questions() -> None:
    outcome = simulate([asked((4,)), asked((3,)), asked((2,))], Setup(nodes=1, workers=2, devices=2, in_flight=1), TICK)
    # One has the first until 4, the other the second until 3 and the third until 5.
    assert outcome.seconds == pytest.approx(5)
    assert sorted(outcome.question_seconds) == pytest.approx([2, 3, 4])
    assert outcome.utilisation == pytest.approx(9 / 10)
    assert outcome.tail_share == pytest.approx(1 / 10), "one of two workers waits for 1 of 5 seconds"
    assert outcome.quantile(0.5) == pytest.approx(3)
    assert outcome.quantile(1.0) == pytest.approx(4)


def test_questions_in_flight_share_ticks() -> None:
    costs = Costs(tick_seconds=1.0, row_seconds=0.5)
    outcome = simulate([asked((4,)), asked((3,)), asked((2,))], Setup(in_flight=3), costs)
    # Two ticks of 3 rows, one of 2, one of 1.
    assert outcome.seconds == pytest.approx(2 * 2.5 + 2.0 + 1.5)
    assert outcome.ticks == pytest.approx(4)


def test_rows_of_the_same_text_are_one_lane_until_they_part() -> None:
    costs = Costs(tick_seconds=1.0, row_seconds=0.0, lane_seconds=0.5)
    question = Question(0, (Wave((4, 4, 3, 2), (0,) * 4, 0, shared=(0, 3, 3, 1)),))
    # A tick with one lane; the fourth row parts from it and ends with the second tick; the second row has a lane of its
    # own for the last tick, and the third none, since it is the same to its end.
    outcome = simulate([question], Setup(), costs)
    assert outcome.seconds == pytest.approx(1.5 + 2.0 + 1.5 + 2.0)
    assert outcome.ticks == pytest.approx(4)


def test_a_wave_waits_for_its_longest_step_and_is_scored() -> None:
    costs = Costs(tick_seconds=1.0, row_seconds=0.1, step_seconds=0.25, question_seconds=2.0)
    outcome = simulate([asked((2, 5), (1,), prompt=10)], Setup(), costs)
    ticks = 2 * 1.2 + 3 * 1.1 + 1 * 1.1
    assert outcome.seconds == pytest.approx(10 * 0.1 + ticks + 3 * 0.25 + 2.0)
    assert outcome.prefill_tokens == 10


def test_rows_beyond_a_ticks_places_wait() -> None:
    outcome = simulate([asked((3, 3, 3))], Setup(batch_rows=2), TICK)
    assert outcome.seconds == pytest.approx(6)


def test_a_driver_sends_one_question_after_the_other() -> None:
    """With many workers the driver is a queue with a fixed time of service: it alone decides how long a run takes."""
    questions = [asked((3,)) for _ in range(20)]
    setup = Setup(nodes=20, in_flight=1, dispatch_seconds=0.5)
    assert simulate(questions, setup, TICK).seconds == pytest.approx(20 * 0.5 + 3)
    few = replace(setup, nodes=2)
    # Two workers answer one question each 3.5 s: the driver is free when they are done.
    assert simulate(questions, few, TICK).seconds == pytest.approx(0.5 + 10 * 3.5, abs=0.5)


def test_workers_that_share_a_device_slow_each_other_down() -> None:
    questions = [asked((1,)), asked((1,)), asked((1,)), asked((3,))]
    outcome = simulate(questions, Setup(nodes=1, workers=4, devices=2, in_flight=1), TICK)
    # At half speed all four work for 2 s, which is 1 s of work each; then the last is alone with 2 s of work.
    assert outcome.seconds == pytest.approx(4)
    assert outcome.busy_seconds == pytest.approx(6)
    assert outcome.utilisation == pytest.approx(6 / 8)


def test_workers_beside_each_other_take_longer_by_what_they_cost_each_other() -> None:
    setup = Setup(nodes=1, workers=3, devices=2, in_flight=1, contention=0.5)
    # Two at a time, each at 1 / 1.5: three workers with 2 s of work have 4/9 of a device each until 4.5 s.
    assert simulate([asked((2,))] * 3, setup, TICK).seconds == pytest.approx(4.5)
    # The shorter is done after 1.5 s, when the longer has 2 s left, which it does alone.
    assert simulate([asked((1,)), asked((3,))], setup, TICK).seconds == pytest.approx(3.5)


def test_questions_that_were_dealt_out_stay_with_their_owners() -> None:
    questions = [asked((4,)), asked((1,)), asked((4,)), asked((1,))]
    setup = Setup(nodes=1, workers=2, devices=2, in_flight=1)
    assert simulate(questions, setup, TICK, owners=[0, 1, 0, 1]).seconds == pytest.approx(8)
    assert simulate(questions, setup, TICK).seconds == pytest.approx(5)


def _failure_times(seed: int, per_hour: float, count: int) -> list[float]:
    source = random.Random(seed)
    return [source.expovariate(per_hour / 3600) for _ in range(count)]


def test_a_question_is_asked_again_when_its_node_is_back() -> None:
    per_hour, repair, work = 360.0, 7.0, 10.0  # A node lives 10 s on average.
    seed = next(
        seed for seed in range(1000) if (lives := _failure_times(seed, per_hour, 2))[0] < work and lives[1] > work + 1
    )
    first = _failure_times(seed, per_hour, 2)[0]
    setup = Setup(failures_per_hour=per_hour, repair_seconds=repair)
    outcome = simulate([asked((10,))], setup, TICK, seed=seed)
    assert outcome.seconds == pytest.approx(first + repair + work)
    assert (outcome.failures, outcome.lost_questions, outcome.questions) == (1, 1, 1)


def test_other_nodes_ask_what_a_failed_one_had() -> None:
    questions = [asked((5,)) for _ in range(40)]
    setup = Setup(nodes=4, workers=2, devices=2, in_flight=1, failures_per_hour=200, repair_seconds=60)
    outcome = simulate(questions, setup, TICK, seed=3)
    calm = simulate(questions, replace(setup, failures_per_hour=0), TICK, seed=3)
    assert outcome.questions == 40
    assert outcome.failures > 0 < outcome.lost_questions
    assert outcome.seconds > calm.seconds == pytest.approx(25)
    assert simulate(questions, setup, TICK, seed=3) == outcome, "the same seed gives the same run"


def test_failures_that_never_let_a_run_end_are_refused() -> None:
    with pytest.raises(RunError, match="never let the run end: its longest question takes 10 s, a node lives 1 s"):
        simulate([asked((10,))], Setup(failures_per_hour=3600), TICK)
    learner = Learner(seconds=(100.0,), questions=1, updates=1)
    with pytest.raises(RunError, match="never let an update end"):
        simulate([asked((1,))], Setup(failures_per_hour=3600), TICK, learner=learner)


@pytest.mark.parametrize(("staleness", "expected"), [(0, [7, 7, 7]), (1, [7, 4, 4]), (5, [7, 4, 4])])
def test_updates_wait_for_rollouts_and_rollouts_for_weights(staleness: int, expected: list[float]) -> None:
    learner = Learner(seconds=(3.0,), questions=1, updates=3, staleness=staleness)
    outcome = simulate([asked((4,))] * 3, Setup(in_flight=1), TICK, learner=learner)
    assert list(outcome.update_seconds) == pytest.approx(expected)
    assert outcome.learner_seconds == pytest.approx(9)
    assert outcome.per_update == pytest.approx(sum(expected) / 3)


def test_prefixes_are_computed_again_where_steps_are_spread() -> None:
    costs = Costs(tick_seconds=0.0, row_seconds=1.0)
    question = asked((2, 2), (1, 1), prompt=10)
    affine = simulate([question], Setup(nodes=2, in_flight=1), costs)
    spread = simulate([question], Setup(nodes=2, in_flight=1, routing="spread"), costs)
    assert affine.prefill_tokens == 10
    # First the prompt on both; then each goes on from a path of 12 tokens, of which it has the prompt.
    assert spread.prefill_tokens == 2 * 10 + 2 * 2
    alone = simulate([question], Setup(routing="spread"), costs)
    assert alone.prefill_tokens == 10, "one worker has everything"


def test_all_work_is_done_whatever_the_number_of_workers() -> None:
    source = random.Random(5)
    questions = [
        asked(*(tuple(source.randint(1, 9) for _ in range(4)) for _ in range(source.randint(1, 4)))) for _ in range(60)
    ]
    costs = Costs(tick_seconds=0.0, row_seconds=0.01, step_seconds=0.002, question_seconds=0.1)
    work = sum(q.tokens * 0.01 + q.steps * 0.002 + 0.1 for q in questions)
    for workers, routing in [(1, "affine"), (3, "affine"), (16, "affine"), (16, "spread")]:
        setup = Setup(nodes=workers, routing=routing, in_flight=4)  # type: ignore[arg-type]
        outcome = simulate(questions, setup, costs)
        assert outcome.busy_seconds == pytest.approx(work + outcome.prefill_tokens * 0.01), (workers, routing)
        assert outcome.questions == 60


def test_a_curve_bends_where_questions_are_few() -> None:
    questions = draw([asked((5,)), asked((20,))], 64, seed=1)
    setup = Setup(in_flight=1)
    points = curve(questions, [with_workers(setup, count, 8) for count in sizes(100)], TICK)
    assert [point.outcome.workers for point in points] == [1, 2, 4, 8, 16, 32, 64, 104], "whole nodes of 8"
    assert points[0].efficiency == 1
    assert points[-1].outcome.seconds == pytest.approx(20), "all at once: the longest question"
    bent = bend(points)
    after = points[points.index(bent) + 1]
    assert bent.efficiency >= 0.8 > after.efficiency


def test_no_questions_and_too_few_are_refused() -> None:
    with pytest.raises(ConfigError, match="no questions"):
        simulate([], Setup(), TICK)
    with pytest.raises(ConfigError, match="3 updates of 2 questions"):
        simulate([asked((1,))], Setup(), TICK, learner=Learner((1.0,), questions=2, updates=3))
