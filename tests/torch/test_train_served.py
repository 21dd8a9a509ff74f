"""Training with rollouts from a loopback server that has the routes of vLLM's adapters."""

from pathlib import Path
from typing import Any

import pytest

from palmette.backends.servers import client
from palmette.config import load_config
from palmette.errors import BackendError, ConfigError
from palmette.events import Noticed, UpdateDone
from palmette.planner.run_plan import planned_memory
from palmette.run.train import SERVED_WEIGHTS, TrainingRun
from palmette.run.training_checks import check_training, training_config
from palmette.settings import Config
from tests.dialects import serving
from tests.lora_server import LoraServer

SMALL: dict[str, Any] = {
    "policy.model": "seedling",
    "policy.backend": "vllm",
    "task.name": "ladder",
    "task.grade": 2,
    "task.questions": 12,
    "search.width": 4,
    "search.total_tokens": 16,
    "train.method": "lora",
    "train.lora_rank": 4,
    "train.updates": 2,
    "train.questions": 2,
    "train.rewards": {"tests.lora_server:differs": 1.0},
    "train.learning_rate": 3e-3,
    "train.checkpoint_every": 1,
}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.001)


def config_of(address: str = "http://127.0.0.1:1", **changed: Any) -> Config:
    own = {key.replace("__", "."): value for key, value in changed.items()}
    return load_config(None, {**SMALL, "policy.address": address, **own})


def trained(config: Config, folder: Path) -> list[UpdateDone]:
    folder.mkdir(exist_ok=True)
    with TrainingRun(config, folder) as run:
        return [event for event in run.updates() if isinstance(event, UpdateDone)]


def versions(history: list[str]) -> list[str]:
    """Return what happened to adapters, their names without run and session."""
    return [each if each == "lost" else each[0] + each.rpartition("-")[2] for each in history]


def test_each_update_is_sampled_with_its_own_adapter_and_old_ones_are_taken_away(tmp_path: Path) -> None:
    server = LoraServer()
    with serving(server.manner()) as [address]:
        done = trained(config_of(address.address), tmp_path / "run")
    assert [update.numbers["served_version"] for update in done] == [0, 1]
    assert done[0].numbers["steps"] == 1  # Else the weights would be the same ones after it.
    assert versions(server.history) == ["+0", "+1", "-0", "-1"] and not server.adapters
    for update in done:
        numbers = update.numbers
        assert numbers["stale_steps"] == numbers["server_ratio_cut"] == 0
        # The weights on the server are those of the learner: 2e-3 apart in the log-probabilities would not be.
        assert numbers["server_ratio_low"] == pytest.approx(1, abs=1e-3)
        assert numbers["server_ratio_high"] == pytest.approx(1, abs=1e-3)
        assert numbers.get("ratio_high", 1) == pytest.approx(1, abs=1e-3)
    assert not (tmp_path / "run" / SERVED_WEIGHTS).exists()
    asked = {body["model"] for path, body in address.asked if path == "/v1/completions"}
    assert len(asked) == 3  # The model itself is asked once, to try its seeds.


def test_a_server_that_was_restarted_gets_the_adapter_again(tmp_path: Path) -> None:
    server = LoraServer()
    server.lost_after = 6
    with serving(server.manner()) as [address]:
        done = trained(config_of(address.address, train__updates=1), tmp_path / "run")
    assert versions(server.history) == ["+0", "lost", "+0", "-0"]
    assert done[0].numbers["responses"] == 8


def test_samples_of_other_weights_are_counted_and_their_ratio_is_seen_and_cut(tmp_path: Path) -> None:
    server = LoraServer()
    server.answers_as = "older"
    with serving(server.manner()) as [address]:
        config = config_of(address.address, train__updates=1, train__server_ratio_cut=1.0)
        numbers = trained(config, tmp_path / "run")[0].numbers
    assert numbers["stale_steps"] >= 8
    assert 0 < numbers["server_ratio_cut"] < 1  # Rounding alone lifts some ratios above 1.


def test_samples_of_weights_older_than_allowed_are_dropped_and_counted(tmp_path: Path) -> None:
    server = LoraServer()
    with serving(server.manner()) as [address]:
        folder = tmp_path / "run"
        folder.mkdir()
        seen: list[Any] = []
        with TrainingRun(config_of(address.address), folder) as run:
            for event in run.updates():
                seen.append(event)
                # From the second update on the server says that it still has the first adapter.
                server.answers_as = server.history[0].removeprefix("+")
    first, second = [event.numbers for event in seen if isinstance(event, UpdateDone)]
    assert (first["dropped_stale"], first["responses"], first["samples"]) == (0, 8, 8)
    assert (second["dropped_stale"], second["responses"], second["samples"], second["steps"]) == (8, 0, 0, 0)
    assert any("8 responses were not learned from" in event.text for event in seen if isinstance(event, Noticed))


def test_a_run_goes_on_at_another_address_after_its_server_has_gone(tmp_path: Path) -> None:
    first, second = LoraServer(), LoraServer()
    with serving(first.manner()) as [address]:
        trained(config_of(address.address, train__updates=1), tmp_path / "run")
    with pytest.raises(BackendError, match=f"^{address.address} cannot be reached: "):
        trained(config_of(address.address), tmp_path / "run")
    with serving(second.manner()) as [address]:
        done = trained(config_of(address.address, train__updates=2), tmp_path / "run")
    assert [update.update for update in done] == [2] and versions(second.history) == ["+1", "-1"]


def test_a_server_that_takes_no_adapters_is_one_line_and_nothing_is_learned(tmp_path: Path) -> None:
    server = LoraServer()
    server.takes_adapters = False
    with serving(server.manner()) as [address], pytest.raises(ConfigError) as caught:
        trained(config_of(address.address), tmp_path / "run")
    assert str(caught.value).startswith(
        f"{address.address} answered /v1/load_lora_adapter with status 404: Not Found. Training needs a server that "
        f"was started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank"
    )


def test_what_servers_cannot_give_to_training_is_told_before_anything_is_loaded() -> None:
    def told(**changed: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            check_training(training_config(config_of(**changed)))
        return str(caught.value)

    assert told(train__method="full").startswith("train.method is full, and vLLM takes new weights as adapters")
    assert told(policy__backend="openai") == (
        "policy.backend is openai: training needs the policy in this process, local, or its rollouts from vllm or "
        "sglang"
    )
    check_training(training_config(config_of(policy__backend="sglang", train__method="full", policy__temperature=0.7)))


def test_a_temperature_needs_log_probabilities_at_that_temperature(tmp_path: Path) -> None:
    server = LoraServer()
    with serving(server.manner()) as [address], pytest.raises(ConfigError) as caught:
        trained(config_of(address.address, policy__temperature=0.7), tmp_path / "raw")
    assert str(caught.value) == (
        "policy.temperature is 0.7, and the server's log-probabilities are those at 1: start vLLM with "
        "--logprobs-mode processed_logprobs, or set it to 1"
    )
    server.temperature = 0.7
    with serving(server.manner()) as [address]:
        done = trained(config_of(address.address, policy__temperature=0.7, train__updates=1), tmp_path / "processed")
    assert done[0].numbers["server_ratio_low"] == pytest.approx(1, abs=1e-3)
    assert done[0].numbers["server_ratio_high"] == pytest.approx(1, abs=1e-3)


def test_rollouts_on_a_server_hold_no_memory_here() -> None:
    wide = {"search.width": 64, "search.total_tokens": 1024, "train.questions": 16}
    served, local = (
        planned_memory(load_config(config_of(), {**wide, **more}), train=True).by_phase
        for more in ({}, {"policy.backend": "local", "policy.address": []})
    )
    assert served["update"] > 0 and served["search"] < local["search"]
