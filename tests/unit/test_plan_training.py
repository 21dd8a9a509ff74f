"""Plans of training: what `palmette plan --train` shows is what `palmette train` refuses by, and its advice fits."""

from pathlib import Path
from typing import Any

import pytest

from palmette.config import load_config
from palmette.errors import BudgetError
from palmette.planner.advice import refusal, settings_that_fit
from palmette.planner.devices import parse_devices
from palmette.planner.lines import HEAP, Phase
from palmette.planner.run_plan import plan_run, planned_memory, refuse_what_cannot_fit
from palmette.run.training_checks import training_config
from palmette.settings import Config
from tests.command import palmette
from tests.unit.test_plan import advised_config

SMALL: dict[str, Any] = {
    "policy.model": "smollm2-135m", "search.total_tokens": 128, "search.width": 8, "memory.prompt_tokens": 96,
    "train.questions": 8, "train.gradient_checkpointing": False,
}  # fmt: skip
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("cpu:4GiB", {}),
    "full with a reference": ("cpu:4GiB", {"train.kl_weight": 0.1}),
    "lora": ("cpu:2GiB", {"train.method": "lora", "train.micro_batch_tokens": 2048}),
    "ppo": ("cpu:4GiB", {"train.algorithm": "ppo"}),
    "trees": ("cpu:4GiB", {"search.strategy": "fixed_tree", "search.branches": [2, 2, 2]}),
    "trees by a reward model": ("cpu:4GiB", {"search.strategy": "rebase", "reward.model": "seedling-prm"}),
    "rows, much too small": ("cpu:1GiB", {"train.sharing": "off"}),
}


def config_of(devices: str, **changed: Any) -> Config:
    settings = {key.replace("__", "."): value for key, value in changed.items()}
    return training_config(load_config(None, {**SMALL, **settings, "memory.devices": devices}))


def phases(config: Config) -> dict[str, Phase]:
    return {phase.name: phase for phase in plan_run(config, train=True)[1].devices[0].phases}


@pytest.mark.parametrize("way", WAYS)
def test_train_refuses_in_the_words_of_the_plan_and_every_setting_advised_is_accepted(way: str) -> None:
    devices, changed = WAYS[way]
    config = training_config(load_config(None, {**SMALL, **changed, "memory.devices": devices}))
    job, plan = plan_run(config, train=True)
    assert not plan.fits
    with pytest.raises(BudgetError) as refused:
        refuse_what_cannot_fit(config, train=True)
    assert str(refused.value) == refusal(job, parse_devices(devices), plan)
    advice = list(settings_that_fit(job, parse_devices(devices)))
    assert advice
    for setting in advice:
        refuse_what_cannot_fit(training_config(advised_config(config, setting)), train=True)


def test_the_two_commands_refuse_in_the_same_words(tmp_path: Path) -> None:
    """By default a reward model is set, which training does not ask."""
    given = ["--policy", "smollm2-135m", "--devices", "cpu:1GiB", "--set", "train.algorithm=ppo"]
    planned = palmette("plan", "--train", *given)
    refused = palmette("train", *given, "--out", str(tmp_path / "run"))
    assert (planned.returncode, refused.returncode) == (3, 3)
    assert planned.stderr.splitlines()[-1] == refused.stderr.splitlines()[-1]
    assert "an update needs" in planned.stderr and "Fits: " in planned.stderr


def test_smaller_groups_and_micro_batches_are_advised_where_they_make_the_update_fit() -> None:
    config = config_of("cpu:3800MiB", train__micro_batch_tokens=65_536, train__gradient_checkpointing=True)
    job, plan = plan_run(config, train=True)
    assert plan.misfits[0][1].name == "update"
    advice = list(settings_that_fit(job, parse_devices("cpu:3800MiB")))
    assert [setting.split()[0] for setting in advice][:2] == ["width", "train.micro_batch_tokens"]


def test_a_reward_model_that_training_does_not_ask_is_not_planned() -> None:
    config = config_of("cpu:8GiB", reward__model="smollm2-135m", reward__score="likelihood")
    assert "score" not in phases(config)
    asked = {**SMALL, "reward.model": "smollm2-135m", "reward.score": "likelihood", "train.rewards": {"score": 1.0}}
    assert "score" in phases(training_config(load_config(None, {**asked, "memory.devices": "cpu:8GiB"})))


def test_as_many_questions_are_planned_as_an_update_or_an_evaluation_searches_at_once() -> None:
    questions = lambda **changed: plan_run(config_of("cpu:8GiB", **changed), train=True)[0].search.questions  # noqa: E731
    assert questions(train__questions=4) == 4
    assert questions(train__questions=400) == 16  # search.questions_in_flight
    assert questions(train__questions=4, train__eval_every=5, train__eval_questions=10) == 10


def test_the_reference_is_read_before_the_update_and_dropped() -> None:
    found = phases(config_of("cpu:8GiB", train__kl_weight=0.1))
    assert list(found) == ["generate", "reference", "update"]
    held = {name: [line.bytes for line in phase.lines if line.kind == "reference"] for name, phase in found.items()}
    layer = 2 * 576 * (576 + 192) + 3 * 576 * 1536
    assert held == {"generate": [], "reference": [4 * (2 * layer + 49_152 * 576 + 61 * 576)], "update": []}
    assert list(phases(config_of("cpu:8GiB", train__algorithm="ppo"))) == ["generate", "values", "update"]


def test_the_heap_keeps_freed_blocks_only_where_the_plan_has_room_for_them() -> None:
    roomy, tight = config_of("cpu:24GiB"), config_of("cpu:6GiB", train__micro_batch_tokens=2048)
    kept = [line for line in phases(roomy)["update"].lines if line.holder == HEAP]
    working = sum(line.bytes for line in phases(roomy)["update"].lines if line.kind in ("activations", "logits"))
    assert [line.bytes for line in kept] == [2 * working] and kept[0].needed_bytes == 0
    assert not planned_memory(roomy, train=True).returns_blocks
    assert plan_run(tight, train=True)[1].fits
    assert not [line for line in phases(tight)["update"].lines if line.holder == HEAP]
    assert planned_memory(tight, train=True).returns_blocks
    assert not planned_memory(tight).returns_blocks  # A search.


def test_the_hand_over_holds_what_a_rollout_leaves() -> None:
    config = config_of("cpu:8GiB")
    rollout = phases(config)["generate"]
    sizes = {line.holder: line.bytes for line in rollout.lines}
    planned = planned_memory(config, train=True).by_phase
    freed = sizes["policy activations"] + sizes["policy logits"] // 4
    assert planned["hand-over"] == rollout.bytes - freed
