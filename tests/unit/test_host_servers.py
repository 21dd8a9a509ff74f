"""Servers planned for the host, and the commands that start planned servers."""

import re
from typing import Any

import pytest

from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError
from palmette.launch.run import planned_commands, with_addresses
from palmette.planner.devices import Device
from palmette.planner.host_servers import DRIFT_SHARE, PROCESS_BYTES
from palmette.planner.lines import Plan
from palmette.planner.run_plan import plan_run
from palmette.zoo.catalog import ENTRIES

GIB = 2**30
ETS = {
    "policy.model": "peiyi9979/mistral-7b-sft",
    "reward.model": "peiyi9979/math-shepherd-mistral-7b-prm",
    "embedder.model": "math-similarity/Bert-MLM_arXiv-MP-class_zbMath",
    "search.strategy": "ets",
    "search.width": 64,
    "memory.devices": "2x24GiB",
    "policy.backend": "sglang",
}


def host_plan(backend: str, changed: dict[str, Any] | None = None, free_bytes: int = 20 * GIB) -> Plan:
    told = {"policy.backend": backend, "reward.model": "seedling-prm", "reward.backend": backend, **(changed or {})}
    host = Device("cpu", "cpu", 24 * GIB, free_bytes)
    return plan_run(load_config(None, told), devices=[host])[1]


def test_kv_on_the_host_is_what_all_branches_in_flight_can_use_in_whole_blocks() -> None:
    plan = host_plan("vllm", {"search.width": 4, "search.total_tokens": 100, "task.questions": 3})
    reward, policy = plan.servers
    assert plan.fits and (reward.role, policy.role) == ("reward", "policy")
    assert policy.kv_tokens == {"vllm": 2048}  # 3 questions x (a prompt of 256 and 4 x 100) = 1,968 tokens.
    assert reward.kv_tokens == {"vllm": 768}  # One question's 656.
    assert f"--kv-cache-memory-bytes {2048 * 6144}" in policy.commands["vllm"]
    assert "--runner pooling" in reward.commands["vllm"] and "--runner" not in policy.commands["vllm"]
    budget = host_plan("vllm", {"search.strategy": "ets", "search.kv_budget": "30MiB", "task.questions": 3})
    assert budget.servers[-1].kv_tokens["vllm"] == 5120 >= 30 * 2**20 // 6144


@pytest.mark.parametrize("free_gib", [7, 12, 20, 200])
def test_sglang_has_its_kv_by_its_own_rule_also_where_others_take_memory_while_it_loads(free_gib: int) -> None:
    plan = host_plan("sglang", free_bytes=free_gib * GIB)
    assert plan.fits
    free, sizes = free_gib * GIB, {"reward": 4_836_864, "policy": 4_836_864}
    for server in plan.servers:
        command, tokens = server.commands["sglang"], server.kv_tokens["sglang"]
        fraction = float(re.search(r"--mem-fraction-static ([\d.]+)", command)[1])  # type: ignore[index]
        before = free - PROCESS_BYTES["sglang"]
        kv = (1 - DRIFT_SHARE) * before - sizes[server.role] - (1 - fraction) * before
        assert kv >= tokens * 6144 and f"--max-total-tokens {tokens}" in command
        held = [line.bytes for line in plan.devices[0].phases[0].lines if line.holder.startswith(server.role)]
        free -= sum(held)
    assert "--is-embedding" in plan.servers[0].commands["sglang"]


def test_what_stays_in_this_process_is_planned_beside_the_servers() -> None:
    plan = host_plan("vllm", {"reward.backend": "local", "search.strategy": "ets"})
    holders = {line.holder for phase in plan.devices[0].phases for line in phase.lines}
    assert [server.role for server in plan.servers] == ["policy"]
    assert {"process", "policy processes", "reward weights", "reward KV", "embedder weights"} <= holders
    assert "reward processes" not in holders and "policy logits" not in holders


def test_servers_that_do_not_fit_the_host_are_refused_with_what_fits() -> None:
    told = {"policy.backend": "vllm", "reward.model": None, "memory.devices": "cpu:2GiB"}
    with pytest.raises(BudgetError, match=r"search needs .* of cpu, budget is 1\.9 GiB .*policy processes .*Fits: "):
        planned_commands(load_config(None, {**told, "policy.model": "smollm2-135m", "policy.dtype": "float32"}))


def test_the_layout_of_ets_has_the_reward_server_first_with_the_fraction_that_its_release_gives() -> None:
    for changed, fraction in (
        ({}, "0.85"),
        ({"search.strategy": "rebase"}, "0.90"),
        ({"search.lambda_diversity": 0.0}, "0.90"),
    ):
        reward, policy = planned_commands(load_config(None, {**ETS, **changed}))
        assert str(reward) == (
            "CUDA_VISIBLE_DEVICES=1 python -m sglang.launch_server --model-path peiyi9979/math-shepherd-mistral-7b-prm "
            f"--dtype bfloat16 --context-length 1280 --mem-fraction-static {fraction} --host 127.0.0.1 --port 30020"
        )
        assert str(policy) == (
            "CUDA_VISIBLE_DEVICES=0 python -m sglang.launch_server --model-path peiyi9979/mistral-7b-sft "
            "--dtype bfloat16 --context-length 1280 --mem-fraction-static 0.90 --host 127.0.0.1 --port 30000"
        )
    assert [command.role for command in planned_commands(load_config(None, {**ETS, "reward.backend": "local"}))] == [
        "policy"
    ]


def test_a_server_gets_the_folder_of_a_zoo_name_its_address_its_program_and_flags_of_ones_own() -> None:
    told = {
        "policy.backend": "vllm", "reward.model": None, "policy.address": "http://localhost:8123",
        "servers.vllm_python": "other/python", "servers.policy_flags": "--block-size 32 --x 'a b'",
    }  # fmt: skip
    config = load_config(None, told)
    [command] = planned_commands(config)
    weights = ENTRIES["seedling"].weights_path()
    assert weights is not None and command.model == str(weights.parent)
    assert command.words[:5] == ("other/python", "-m", "vllm.entrypoints.cli.main", "serve", command.model)
    assert command.words[-8:] == ("--host", "localhost", "--port", "8123", "--block-size", "32", "--x", "a b")
    assert command.environment == {"HF_HUB_OFFLINE": "1"} and command.port == 8123
    searched = with_addresses(config, [command])
    assert searched.policy.address == ("http://localhost:8123",) and searched.policy.return_seconds == 600
    kept = with_addresses(load_config(None, {**told, "policy.return_seconds": 5.0}), [command])
    assert kept.policy.return_seconds == 5


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"policy.backend": "local"}, "policy.backend is local: palmette up starts servers of vllm and sglang"),
        ({"policy.address": "http://10.0.0.1:8000"}, "palmette up starts servers on this machine"),
        ({"policy.address": "http://127.0.0.1:1,http://127.0.0.1:2"}, "names 2 servers: palmette up starts one"),
        ({"reward.model": "seedling-prm", "reward.backend": "sglang"}, "start one kind of server"),
        ({"servers.policy_flags": "--x 'a"}, "servers.policy_flags cannot be .*write flags as in a shell"),
    ],
)
def test_what_cannot_be_started_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        planned_commands(load_config(None, {"policy.backend": "vllm", "reward.model": None, **changed}))
