"""Training runs on the seedling: resumed runs end with the same weights, bad input is told in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palmette.commands.training.training_run import Page
from palmette.config import load_config
from palmette.errors import ConfigError, PalmetteError, RunError
from palmette.event_log import read_events
from palmette.events import Evaluated, Noticed, UpdateDone
from palmette.run.folder import anchored, run_config
from palmette.run.train import TrainingRun
from palmette.run.training_checks import check_same_run, check_training, training_config
from palmette.settings import Config
from palmette.zoo.resolve import resolve

pytestmark = pytest.mark.real

SMALL: dict[str, Any] = {
    "policy.model": "seedling",
    "task.name": "ladder",
    "task.grade": 2,
    "task.questions": 20,
    "search.width": 4,
    "search.total_tokens": 80,
    "train.updates": 4,
    "train.questions": 3,
    "train.learning_rate": 1e-3,
    "train.checkpoint_every": 1,
}


def config_of(**changed: Any) -> Config:
    return load_config(None, {**SMALL, **{key.replace("__", "."): value for key, value in changed.items()}})


def trained(config: Config, folder: Path, *, copied: Path | None = None) -> list[Any]:
    """Train to the end. `copied` becomes the folder as it is where update 2 is done and its checkpoint not written.

    That is what a run leaves that is killed there.
    """
    folder.mkdir(exist_ok=True)
    seen: list[Any] = []
    with TrainingRun(config, folder) as run:
        for event in run.updates():
            seen.append(event)
            if copied is not None and isinstance(event, UpdateDone) and event.update == 2:
                shutil.copytree(folder, copied)
    return seen


def told(event: UpdateDone) -> dict[str, float]:
    """Return the statistics of an update without those that depend on time."""
    return {name: number for name, number in event.numbers.items() if name != "tokens_per_second"}


def weights_of(folder: Path, update: int) -> bytes:
    return (folder / "checkpoints" / f"update-{update:08d}" / "model.safetensors").read_bytes()


def state_of(folder: Path, update: int) -> bytes:
    return (folder / "checkpoints" / f"update-{update:08d}" / "training.safetensors").read_bytes()


def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    config = config_of(train__kl_weight=0.02, train__schedule="cosine", train__warmup_updates=2)
    whole = trained(config, tmp_path / "whole", copied=tmp_path / "stopped")
    # Stopped before the checkpoint of the second update: that update is made again.
    rest = trained(config, tmp_path / "stopped")
    assert [event.update for event in rest] == [2, 3, 4]
    assert weights_of(tmp_path / "stopped", 4) == weights_of(tmp_path / "whole", 4)
    assert state_of(tmp_path / "stopped", 4) == state_of(tmp_path / "whole", 4)
    assert weights_of(tmp_path / "whole", 4) != weights_of(tmp_path / "whole", 3)
    for before, after in zip(whole[1:], rest, strict=True):
        assert (told(before), before.samples) == (told(after), after.samples)


def test_the_first_pass_has_a_ratio_of_1_and_the_reference_is_the_policy_at_first(tmp_path: Path) -> None:
    first = trained(config_of(train__updates=1, train__kl_weight=0.1), tmp_path / "run")[0]
    assert first.numbers["ratio_low"] == pytest.approx(1, abs=1e-4)
    assert first.numbers["ratio_high"] == pytest.approx(1, abs=1e-4)
    assert first.numbers["kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "changed",
    [
        {"train.algorithm": "ppo"},
        {"train.algorithm": "ppo", "train.critic": "seedling", "train.critic_learning_rate": 1e-2},
        {"train.algorithm": "ppo", "train.critic": "seedling", "train.method": "lora"},
        {"train.algorithm": "gspo", "train.mini_batches": 2, "train.epochs": 2},
        {"train.method": "lora", "train.kl_weight": 0.1},
        {"search.strategy": "fixed_tree", "search.branches": [2, 2], "task.grade": 3, "search.total_tokens": 160},
    ],
)
def test_every_way_to_train_changes_the_policy_and_resumes(changed: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(None, {**SMALL, "train.updates": 2, **changed})
    trained(config, tmp_path / "whole", copied=tmp_path / "stopped")
    assert [event.update for event in trained(config, tmp_path / "stopped")] == [2]
    name = "adapter_model.safetensors" if config.train.method == "lora" else "model.safetensors"
    last, again = (tmp_path / run / "checkpoints" / "update-00000002" / name for run in ("whole", "stopped"))
    assert again.read_bytes() == last.read_bytes()
    assert state_of(tmp_path / "stopped", 2) == state_of(tmp_path / "whole", 2)
    if config.train.critic_model is not None:
        critic, its_copy = last.parent / "critic" / name, again.parent / "critic" / name
        assert its_copy.read_bytes() == critic.read_bytes()
        assert critic.read_bytes() != last.read_bytes()
    began = load_file(str(Path(resolve("seedling")) / "model.safetensors"))
    assert any(not torch.equal(tensor, began.get(name, tensor * 0)) for name, tensor in load_file(last).items())


def test_a_critic_of_its_own_learns_what_the_responses_reach(tmp_path: Path) -> None:
    config = config_of(
        train__algorithm="ppo", train__critic="seedling", train__critic_learning_rate=3e-3, train__updates=3
    )
    seen = [event.numbers for event in trained(config, tmp_path / "run") if isinstance(event, UpdateDone)]
    assert seen[0]["value_explained"] == 0  # Its first value is 0 everywhere.
    assert seen[-1]["value_loss"] < seen[0]["value_loss"]
    assert all(numbers["critic_gradient_norm"] > 0 for numbers in seen)


def test_a_critic_with_other_tokens_than_the_policy_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(resolve("seedling"), folder)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ConfigError, match=r"its tokens are not those of the policy seedling"):
        trained(config_of(train__algorithm="ppo", train__critic=str(folder)), tmp_path / "run")


def test_evaluations_ask_test_questions_only(tmp_path: Path) -> None:
    seen = trained(config_of(train__updates=2, train__eval_every=2, train__eval_questions=5), tmp_path / "run")
    evaluated = [event for event in seen if isinstance(event, Evaluated)]
    assert [(event.update, event.questions) for event in evaluated] == [(0, 5), (2, 5)]


def test_what_rewards_log_is_averaged_over_all_draws_of_an_update(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(
        "draws = []\n"
        "def second(completions, log_metric):\n"
        "    draws.append(1)\n"
        "    log_metric('draw', len(draws))\n"
        "    return [float(place % 2 and len(draws) > 1) for place in range(len(completions))]\n"
    )
    rewards = {f"{tmp_path / 'draws.py'}:second": 1.0}
    config = config_of(train__algorithm="dapo", train__rewards=rewards, train__updates=1)
    (done,) = (event for event in trained(config, tmp_path / "run") if isinstance(event, UpdateDone))
    assert (done.numbers["draws"], done.numbers["metric draw"]) == (2, 1.5)


def test_a_run_without_signal_stops_and_says_why(tmp_path: Path) -> None:
    rewards = tmp_path / "same.py"
    rewards.write_text("def same(solution):\n    return 0.5\n")
    config = config_of(train__rewards={f"{rewards}:same": 1.0}, train__stop_without_signal=3)
    with pytest.raises(RunError, match="in the last 3 updates all responses to a question had the same reward"):
        trained(config, tmp_path / "run")
    events = list(read_events(tmp_path / "run"))
    assert [event.about for event in events if isinstance(event, Noticed)] == ["signal"]
    assert all(event.numbers["steps"] == 0 for event in events if isinstance(event, UpdateDone))


def test_a_run_whose_questions_have_changed_does_not_go_on(tmp_path: Path) -> None:
    rows = [{"question": f"{n}+2", "answer": str(n + 2)} for n in range(2, 8)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {"task.name": str(file), "task.format": "ladder", "train.updates": 1}
    config = load_config(None, {**{key: SMALL[key] for key in SMALL if not key.startswith("task.")}, **told})
    trained(config, tmp_path / "run")
    trained(config, tmp_path / "run")
    rows[3]["answer"] = "0"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunError, match=r"was started with other questions to train on than there are now: .*rows"):
        trained(config, tmp_path / "run")


def test_a_run_that_goes_on_with_another_reward_file_tells_it(tmp_path: Path) -> None:
    rewards = tmp_path / "mine.py"
    rewards.write_text("def short(solution):\n    return -len(solution)\n")
    config = config_of(train__rewards={f"{rewards}:short": 1.0}, train__updates=1)
    trained(config, tmp_path / "run")
    with TrainingRun(config, tmp_path / "run") as run:
        assert not [note for note in run.notes if "reward" in note]
    rewards.write_text("def short(solution):\n    return -2 * len(solution)\n")
    with TrainingRun(config, tmp_path / "run") as run:
        assert [note for note in run.notes if "mine.py:short has changed since update 1: updates from here" in note]


def test_a_reward_that_changes_the_working_folder_does_not_move_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").mkdir()
    code = f"import os\ndef moves(solution):\n    os.chdir({str(tmp_path / 'away')!r})\n    return len(solution)\n"
    (tmp_path / "moves.py").write_text(code)
    config = config_of(train__updates=2, train__rewards={"moves.py:moves": 1.0}, train__log_to=["tensorboard"])
    page = Page(Path("run"))
    trained(anchored(config), Path("run"))
    page.write()
    assert not list((tmp_path / "away").iterdir())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoints", "events.jsonl", "report.html", "tensorboard",
    ]  # fmt: skip


def test_answers_that_are_cut_are_noticed(tmp_path: Path) -> None:
    seen = trained(config_of(train__updates=1, search__total_tokens=5), tmp_path / "run")
    assert ["100% of the responses were cut" in event.text for event in seen if isinstance(event, Noticed)] == [True]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"search.width": 1}, "grpo compares the responses to one question with each other and needs 2 or more"),
        ({"policy.temperature": 0.0}, "policy.temperature is 0: all responses to a question would be the same"),
        ({"policy.quantize": "int8"}, "quantized weights cannot be trained"),
        ({"train.kl_weight": 0.1, "train.reference": "none"}, "train.kl_weight asks for a reference policy"),
        ({"train.rewards": {"score": 1.0}, "reward.model": None}, "there is no reward model"),
        ({"train.rewards": {"gym": 1.0}}, "train.rewards names gym, and the task is ladder"),
        (
            {"search.strategy": "fixed_tree", "search.branches": [2, 2], "train.algorithm": "ppo"},
            "ppo has a critic of its own, set it to flat",
        ),
        ({"train.critic": "seedling"}, "train.critic is seedling: grpo has no critic. Set train.algorithm to ppo"),
        ({"train.algorithm": "ppo", "train.critic": "seedlin"}, "seedlin.*[Dd]id you mean"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_is_loaded(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_training(load_config(None, {**SMALL, **changed}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_reference_in_another_dtype_than_its_file_is_refused_before_the_first_rollout(
    tmp_path: Path, dtype: str
) -> None:
    told = (
        f"its file, which holds float32, and policy.dtype is {dtype}. Set policy.dtype to float32, train.method to lora"
    )
    with pytest.raises(ConfigError, match=told):
        trained(config_of(policy__dtype=dtype, train__kl_weight=0.1), tmp_path / "run")
    trained(config_of(policy__dtype=dtype, train__updates=1), tmp_path / "none")


def test_fewer_questions_than_an_update_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.questions is 30, and ladder has 20 questions to train on"):
        trained(config_of(train__questions=30), tmp_path)


def test_prompts_above_the_limit_are_refused_or_left_out_with_a_count(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    texts = ["1+1", "2+2", "3+3", "4+4", "12+34-(5*6)+78-(9-1)+23"]
    rows.write_text("".join(json.dumps({"question": text, "answer": "2"}) + "\n" for text in texts))
    file = {"task.name": str(rows), "task.format": "ladder", "train.prompt_tokens": 8, "train.updates": 1}
    config = load_config(None, {**{key: SMALL[key] for key in SMALL if not key.startswith("task.")}, **file})
    with pytest.raises(ConfigError, match=r"question 5 has 25 tokens, train.prompt_tokens is 8: raise it, or set task"):
        trained(config, tmp_path / "refused")
    skips = load_config(config, {"task.unaskable": "skip"})
    (tmp_path / "skips").mkdir()
    with TrainingRun(skips, tmp_path / "skips") as run:
        assert [note for note in run.notes if "1 questions cannot be asked" in note]
        assert next(iter(run.updates())).update == 1
    with pytest.raises(ConfigError, match="1 cannot be asked and 4 are left: lower it, or raise train.prompt_tokens"):
        trained(load_config(skips, {"train.questions": 5}), tmp_path / "too few")


@pytest.mark.parametrize(
    "changed",
    [{}, {"train.algorithm": "ppo"}, {"search.strategy": "fixed_tree", "search.branches": [2, 2]}],
    ids=["grpo", "ppo", "tree"],
)
def test_an_update_without_any_reward_makes_no_step_and_is_logged(changed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("def none(solution):\n    return None\n")
    rewards = {"train.rewards": {f"{tmp_path / 'none.py'}:none": 1.0}, "train.updates": 1, "train.kl_weight": 0.1}
    done, notice = trained(load_config(None, {**SMALL, **rewards, **changed}), tmp_path / "run")
    assert notice.about == "reward"
    assert "no reward applied to any of the 12 responses" in notice.text
    assert (done.numbers["steps"], done.numbers["samples"], done.numbers["unrewarded"]) == (0, 0, 12)
    assert weights_of(tmp_path / "run", 1) != b""


def test_an_update_whose_every_response_is_cut_and_masked_makes_no_step(tmp_path: Path) -> None:
    seen = trained(config_of(train__updates=1, search__total_tokens=5, train__mask_cut=True), tmp_path / "run")
    assert (seen[0].numbers["steps"], seen[0].numbers["cut_share"]) == (0, 1)


def test_a_run_does_not_go_on_with_other_settings(tmp_path: Path) -> None:
    before = config_of()
    (tmp_path / "checkpoints").mkdir()
    check_same_run(tmp_path, before, config_of(train__updates=9, train__eval_every=2))
    advised = config_of(train__on_reward_error="skip", train__prompt_tokens=64, task__unaskable="skip")
    check_same_run(tmp_path, before, advised)
    with pytest.raises(RunError, match=r"was started with train.learning_rate 0.001, and would go on with 0.1"):
        check_same_run(tmp_path, before, config_of(train__learning_rate=0.1))
    with pytest.raises(RunError, match="was started with seed 0"):
        check_same_run(tmp_path, before, config_of(seed=1))


def test_a_run_without_an_update_starts_anew_with_other_settings(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def broken(solution):\n    raise ValueError\n")
    broken = config_of(train__rewards={f"{tmp_path / 'broken.py'}:broken": 1.0}, train__eval_every=1)
    with pytest.raises(RunError, match=r"broken.py:broken failed on question"):
        trained(load_config(broken, {"train.eval_questions": 2}), tmp_path / "run")
    other = config_of(train__updates=1, search__width=2)
    check_same_run(tmp_path / "run", broken, other)
    trained(other, tmp_path / "run")
    assert run_config(tmp_path / "run").search.width == 2
    assert not [event for event in read_events(tmp_path / "run") if isinstance(event, Evaluated)]
    with pytest.raises(RunError, match=r"was started with search.width 2, and would go on with 4"):
        check_same_run(tmp_path / "run", run_config(tmp_path / "run"), training_config(config_of()))


def test_a_checkpoint_of_another_model_is_told(tmp_path: Path) -> None:
    config = config_of(train__updates=1)
    trained(config, tmp_path / "run")
    lora = load_config(config, {"train.method": "lora", "train.updates": 2})
    with pytest.raises(PalmetteError, match="does not fit the policy|of another model"):
        trained(lora, tmp_path / "run")


def test_a_run_without_a_sound_checkpoint_does_not_start_from_the_beginning(tmp_path: Path) -> None:
    config = config_of(train__updates=2)
    trained(config, tmp_path / "run")
    first, last = (tmp_path / "run" / "checkpoints" / f"update-0000000{update}" for update in (1, 2))
    weights = bytearray((last / "model.safetensors").read_bytes())
    weights[len(weights) // 3] ^= 1
    (last / "model.safetensors").write_bytes(weights)
    with TrainingRun(config, tmp_path / "run") as run:
        assert run.progress.update == 1
        assert [note for note in run.notes if "update-00000002/model.safetensors: its content is not what was" in note]
    (first / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"no checkpoint of .*/run can be gone on from, .* Move .*/checkpoints away"):
        trained(config, tmp_path / "run")
    assert (last / "model.safetensors").read_bytes() == weights
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "away")
    assert [event.update for event in trained(config, tmp_path / "run")] == [1, 2]


def test_a_checkpoint_is_a_model_that_search_can_use(tmp_path: Path) -> None:
    trained(config_of(train__updates=1), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "update-00000001"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    from palmette import Searcher

    with Searcher(str(folder), None, settings={"task.format": "ladder"}, width=2, total_tokens=60) as searcher:
        assert searcher.search("3*4+5").tokens > 0


def test_training_begins_with_an_adapter_and_generates_with_it(tmp_path: Path) -> None:
    lora = {"train__method": "lora", "train__lora_rank": 4, "train__updates": 2}
    trained(config_of(**lora), tmp_path / "first")
    adapter = tmp_path / "first" / "checkpoints" / "update-00000002"
    second = trained(config_of(**lora, policy__adapter=str(adapter), seed=1), tmp_path / "second")
    numbers = next(event.numbers for event in second if isinstance(event, UpdateDone))
    # The policy that generates is the one that learns: had only one of them the adapter, the ratio would not be 1.
    assert numbers["ratio"] == pytest.approx(1, abs=1e-5)
    before = load_file(adapter / "adapter_model.safetensors")
    after = load_file(tmp_path / "second" / "checkpoints" / "update-00000002" / "adapter_model.safetensors")
    # Two steps of Adam at 1e-3 from where it began; a new adapter of this seed would be as far away as its weights are.
    assert 0 < max(float((after[name] - before[name]).abs().max()) for name in before) < 5e-3
