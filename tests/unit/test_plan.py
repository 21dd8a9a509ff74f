"""Plans: placement, fractions, lines worked out by hand, and refusals whose advice fits."""

import re
from dataclasses import replace
from typing import Any

import pytest

from palmette.config import check_config, load_config
from palmette.errors import BudgetError, ConfigError
from palmette.planner import advice
from palmette.planner.advice import refusal, settings_that_fit
from palmette.planner.devices import parse_devices
from palmette.planner.lines import Line, Plan
from palmette.planner.place import RULES
from palmette.planner.plan import plan_job
from palmette.planner.run_plan import job_of, plan_run, planned_memory, refuse_what_cannot_fit

GIB = 2**30
ETS: dict[str, Any] = {
    "policy.model": "peiyi9979/mistral-7b-sft",
    "reward.model": "peiyi9979/math-shepherd-mistral-7b-prm",
    "embedder.model": "math-similarity/Bert-MLM_arXiv-MP-class_zbMath",
    "search.strategy": "ets",
    "search.width": 64,
}


def planned(devices: str, *, train: bool = False, server: str = "sglang", **settings: Any) -> Plan:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return plan_run(load_config(None, {**ETS, "memory.devices": devices, **dotted}), train=train, server=server)[1]


def roles(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {device.device.name: device.roles for device in plan.devices}


def lines(plan: Plan, device: int = 0, phase: int = 0) -> dict[str, Line]:
    return {line.holder: line for line in plan.devices[device].phases[phase].lines}


def fractions(plan: Plan, flag: str) -> dict[str, str]:
    return {
        server.role: found[1]
        for server in plan.servers
        for command in server.commands.values()
        if (found := re.search(rf"{flag} ([\d.]+)", command))
    }


@pytest.mark.parametrize("devices", ["2x24GiB", "2x80GiB"])
def test_the_layout_of_ets_comes_out_as_its_authors_run_it(devices: str) -> None:
    plan = planned(devices)
    assert plan.fits
    assert roles(plan) == {"cuda:0": ("policy",), "cuda:1": ("reward", "embedder")}
    assert fractions(plan, "--mem-fraction-static") == {"policy": "0.90", "reward": "0.85"}
    assert fractions(plan, "--gpu-memory-utilization") == {"policy": "0.90", "reward": "0.85"}
    assert {rule.id for rule in plan.rules} >= {"policy-alone", "embedder-with-reward", "reward-fraction"}


@pytest.mark.parametrize("devices", ["2x24GiB", "2x80GiB"])
def test_without_a_diversity_term_there_is_no_embedder_and_no_lower_fraction(devices: str) -> None:
    plan = planned(devices, search__lambda_diversity=0.0)
    assert roles(plan) == {"cuda:0": ("policy",), "cuda:1": ("reward",)}
    assert fractions(plan, "--mem-fraction-static") == {"policy": "0.90", "reward": "0.90"}
    assert not any(line.kind == "embedder" for device in plan.devices for line in device.phases[0].lines)
    assert "no-embedder" in {rule.id for rule in plan.rules}


def test_a_larger_embedder_lowers_the_reward_fraction_further() -> None:
    plan = planned("2x24GiB", embedder__model="BAAI/bge-m3", embedder__batch_rows=256)
    assert float(fractions(plan, "--mem-fraction-static")["reward"]) < 0.85
    assert plan.fits


def test_what_two_fractions_leave_for_kv_is_worked_out_by_each_servers_own_rule() -> None:
    plan = planned("2x80GiB", search__lambda_diversity=0.0)
    policy = next(server for server in plan.servers if server.role == "policy")
    weights, context = 7_241_732_096 * 2, 450 * 2**20
    passes = lines(plan)["policy activations"].bytes
    assert policy.kv_tokens["sglang"] == (int(0.9 * (80 * GIB - context)) - weights) // 131_072
    assert policy.kv_tokens["vllm"] == (int(0.9 * 80 * GIB) - weights - passes) // 131_072
    assert lines(plan)["policy KV"].bytes // 131_072 == policy.kv_tokens["sglang"]


def test_every_planned_server_stays_within_its_devices_share() -> None:
    for devices in ("2x20GiB", "2x24GiB", "2x48GiB", "1x48GiB", "1x80GiB", "4x24GiB"):
        for server in ("sglang", "vllm"):
            plan = planned(devices, server=server)
            assert plan.fits
            for device in plan.devices:
                assert device.peak.limit_bytes is not None
                assert device.peak.bytes <= device.peak.limit_bytes == int((device.device.total_bytes or 0) * 0.95)


def test_on_one_device_all_roles_share_and_the_reward_server_starts_first() -> None:
    plan = planned("1x80GiB")
    assert roles(plan) == {"cuda:0": ("policy", "reward", "embedder")}
    assert [phase.name for phase in plan.devices[0].phases] == ["generate", "score", "embed"]
    assert [server.role for server in plan.servers] == ["reward", "policy"]
    assert "share-by-phase" in {rule.id for rule in plan.rules}
    shares = [float(found) for found in fractions(plan, "--gpu-memory-utilization").values()]
    assert sum(shares) < 0.95
    assert set(lines(plan, phase=2)) - set(lines(plan, phase=0)) == {"embedder activations"}


def test_inside_one_process_activations_of_two_roles_are_never_added() -> None:
    plan = plan_run(load_config(None, {"search.strategy": "rebase", "memory.devices": "cpu:24GiB"}))[1]
    assert [phase.name for phase in plan.devices[0].phases] == ["generate", "score"]
    generate, score = (set(lines(plan, phase=phase)) for phase in range(2))
    assert generate ^ score == {"policy activations", "policy logits", "reward activations", "reward logits"}


def test_an_embedder_away_from_the_reward_model_is_an_error_that_names_the_right_device() -> None:
    with pytest.raises(ConfigError, match=r"embedder.device cuda:0 is not the reward model's device: set .* to cuda:1"):
        planned("2x24GiB", embedder__device="cuda:0")
    with pytest.raises(ConfigError, match="set embedder.device to cuda:0"):
        planned("2x24GiB", embedder__device="cuda:1", reward__device="cuda:0")
    kept = planned("2x80GiB", embedder__device="cuda:0", memory__any_embed_device=True)
    assert roles(kept) == {"cuda:0": ("policy", "embedder"), "cuda:1": ("reward",)}
    assert roles(planned("2x24GiB", embedder__device="cuda:1"))["cuda:1"] == ("reward", "embedder")


def test_settings_that_name_devices_are_followed() -> None:
    assert roles(planned("2x24GiB", policy__device="cuda:1"))["cuda:0"] == ("reward", "embedder")
    assert roles(planned("2x24GiB", reward__device="cuda:0"))["cuda:1"] == ("policy",)
    with pytest.raises(ConfigError, match="policy.device is cuda:2, and there is no such device: set policy.device to"):
        planned("2x24GiB", policy__device="cuda:2")


def test_devices_that_are_not_used_are_named() -> None:
    assert "cuda:2, cuda:3: not used" in planned("4x24GiB").remarks


def test_a_search_on_a_cpu_is_counted_line_by_line() -> None:
    settings = {"search.strategy": "ets", "search.kv_budget": "64MiB", "reward.kv_budget": "32MiB", "search.width": 4}
    config = load_config(None, {**settings, "memory.devices": "cpu:24GiB", "search.lambda_diversity": 0.0})
    found = lines(plan_run(config)[1])
    assert found["policy weights"].bytes == found["reward weights"].bytes == 1_208_576 * 4
    token = 2 * 6 * 4 * 32 * 4
    assert found["policy KV"].bytes == 64 * 2**20 // token * token
    assert found["reward KV"].bytes == 32 * 2**20 // token * token
    assert {found["policy KV"].basis, found["reward KV"].basis} == {"declared"}
    rows = 16 * 4
    assert found["policy logits"].bytes == rows * 21 * 4 + rows * 21 * (
        2 * 4 + 4 * 8
    )  # Logits; their ordered copy, their probabilities, and noise.
    assert found["margin"].bytes >= 0.03 * found["process"].bytes


def test_the_reward_model_reads_more_tokens_than_the_policy_writes_where_its_profile_adds_tags() -> None:
    limits = {"search.depth": 10, "search.step_tokens": 40, "search.total_tokens": 100}
    found = {
        profile: job_of(load_config(None, {**ETS, **limits, "reward.profile": profile}), served=False).search.as_scored
        for profile in ("math-shepherd", "qwen2.5-math-prm", "rlhflow")
    }
    tokens = {profile: (search.step_tokens, search.total_tokens) for profile, search in found.items()}
    # A tag with a line break; a tag alone; a turn of the user and one of the assistant.
    assert tokens == {"math-shepherd": (42, 120), "qwen2.5-math-prm": (41, 110), "rlhflow": (56, 260)}
    search = job_of(load_config(None, {**ETS, **limits, "reward.score": "head"}), served=False).search
    assert (search.as_scored.step_tokens, search.as_scored.total_tokens) == (40, 100)


def test_a_kv_cache_without_a_budget_may_grow_into_what_is_left_but_needs_one_path_only() -> None:
    settings = {"policy.model": "smollm2-135m", "search.width": 256, "task.name": "rg:chain_sum"}
    small, large = (
        lines(plan_run(load_config(None, {**settings, "memory.devices": devices}))[1])["policy KV"]
        for devices in ("cpu:4GiB", "cpu:2000GiB")
    )
    assert small.needed_bytes == large.needed_bytes == 64 * 2**20 // 46_080 * 46_080 + 46_080
    assert small.bytes < 4 * GIB < large.bytes


def test_full_training_holds_gradients_and_two_moments_of_every_parameter() -> None:
    settings = {"policy.model": "smollm2-135m", "memory.devices": "cpu:24GiB"}
    plan = plan_run(load_config(None, settings), train=True)[1]
    update = next(phase for phase in plan.devices[0].phases if phase.name == "update")
    found = {line.holder: line.bytes for line in update.lines}
    assert found["policy weights"] == found["gradients"] == 134_515_008 * 4
    assert found["optimizer state"] == 2 * 134_515_008 * 4
    assert "logits" not in found  # The most is held in the last layer, when the logits are freed.
    assert found["gradients in flight"] == 49_152 * 576 * 4
    assert (update.share, "policy KV" in found) == (0.90, False)
    assert "optimizer state" in lines(plan)


def test_a_critic_of_its_own_is_counted_between_updates_and_in_its_own_update() -> None:
    settings = {"policy.model": "seedling", "memory.devices": "cpu:24GiB", "train.algorithm": "ppo"}
    plan = plan_run(load_config(None, {**settings, "train.critic": "smollm2-135m"}), train=True)[1]
    kept = lines(plan)
    assert kept["critic weights"].bytes == 134_515_008 * 4
    assert kept["critic optimizer state"].bytes == 2 * 134_515_008 * 4
    update = {line.holder: line.bytes for line in plan.devices[0].phases[-1].lines}
    assert update["critic gradients"] == 134_515_008 * 4
    assert update["critic gradients in flight"] == 49_152 * 576 * 4
    assert update["critic activations"] > 0
    assert "logits" not in update and "gradients" not in update  # The critic's update holds more than the policy's.


def test_lora_trains_few_parameters_and_chunks_bound_the_logits() -> None:
    settings = {
        "policy.model": "smollm2-135m",
        "memory.devices": "cpu:24GiB",
        "train.method": "lora",
        "train.lora_rank": 8,
        "memory.prompt_tokens": 64,
        "search.total_tokens": 300,
        "train.micro_batch_tokens": 364,
    }
    plan = plan_run(load_config(None, settings), train=True)[1]
    update = {line.holder: line.bytes for line in plan.devices[0].phases[-1].lines}
    count = 30 * 8 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))
    assert update["LoRA weights"] == update["gradients"] == count * 4
    assert update["optimizer state"] == 2 * count * 4
    assert update["logits"] == (256 + 5) * 49_152 * 4  # A chunk of 48 MiB and a block of 1 MiB.
    assert "gradients in flight" not in update


def test_the_reference_policy_is_in_host_memory_whenever_a_device_trains() -> None:
    plan = planned("2x80GiB,cpu:128GiB", train=True, train__reference="host", train__method="lora")
    host = next(device for device in plan.devices if device.device.name == "cpu")
    assert [line.holder for line in host.phases[0].lines if line.kind == "reference"] == ["reference weights"]
    phases = {phase.name: phase for phase in plan.devices[0].phases}
    on_gpu = [line for line in phases["reference"].lines if line.kind == "reference"]
    assert [line.holder for line in on_gpu] == ["reference layers"]
    assert not [line for line in phases["update"].lines if line.kind == "reference"]
    rollout, update = lines(plan), {line.holder: line for line in plan.devices[0].phases[-1].lines}
    assert rollout["policy weights"].bytes == update["policy weights"].bytes  # One copy generates and learns.
    assert on_gpu[0].bytes < host.phases[0].lines[0].bytes / 10
    assert "reference-on-host" in {rule.id for rule in plan.rules}


def test_predicted_lines_take_the_place_of_formulas_and_say_so() -> None:
    config = load_config(None, {"policy.model": "smollm2-135m", "memory.devices": "cpu:24GiB"})
    job = replace(job_of(config, train=True, served=False), predicted={"activations": 12_345})
    plan = plan_job(job, parse_devices("cpu:24GiB"))
    line = next(line for line in plan.devices[0].phases[-1].lines if line.kind == "activations")
    assert (line.bytes, line.basis) == (12_345, "predicted")
    others = {line.holder: line.basis for line in plan.devices[0].phases[-1].lines}
    assert others["gradients"] == "formula"
    assert "logits" not in others  # They are part of the predicted activations.


def test_a_plan_counts_one_thing_in_the_singular() -> None:
    settings = {"search.width": 1, "task.questions": 1, "memory.prompt_tokens": 1, "search.total_tokens": 1}
    plan = plan_run(load_config(None, {**settings, "reward.model": None, "memory.devices": "cpu:8GiB"}))[1]
    notes = {holder: line.note for holder, line in lines(plan).items()}
    assert notes["policy activations"] == "a tick of 1 token"
    assert notes["policy logits"] == "1 row x 21, and one draw"
    tight = {**settings, "search.strategy": "ets", "search.lambda_diversity": 0.0, "search.kv_budget": 2 * 6144}
    plan = plan_run(load_config(None, {**tight, "memory.devices": "cpu:8GiB"}))[1]
    assert plan.fits
    assert lines(plan)["policy KV"].note == "2 tokens: 1 branch unshared, width 1"


REFUSED: list[tuple[str, bool, dict[str, Any]]] = [
    ("2x24GiB", False, {"memory.kv_holds": "width", "search.width": 256}),
    ("1x24GiB", False, {}),
    ("2x24GiB", True, {}),
    ("2x80GiB", True, {"train.micro_batch_tokens": 300_000, "train.method": "lora", "train.questions": 512}),
    ("1x10GiB,1x24GiB", False, {"reward.model": "Qwen/Qwen2.5-1.5B", "reward.score": "likelihood"}),
    ("2x24GiB", False, {"policy.dtype": "float32"}),
    ("cpu:4GiB", False, {"policy.model": "smollm2-135m", "reward.model": "seedling-prm", "search.kv_budget": "8GiB"}),
]


@pytest.mark.parametrize(("devices", "train", "settings"), REFUSED)
def test_a_refusal_names_numbers_and_every_setting_it_advises_fits(
    devices: str, train: bool, settings: dict[str, Any]
) -> None:
    config = load_config(None, {**ETS, **settings, "memory.devices": devices})
    job, plan = plan_run(config, train=train)
    assert not plan.fits
    said = refusal(job, parse_devices(devices), plan)
    assert re.match(r"(search|an update|a rollout) needs [\d.]+ GiB of \S+, budget is [\d.]+ GiB \(9\d% of", said)
    advice = list(settings_that_fit(job, parse_devices(devices)))
    assert advice
    for setting in advice:
        assert plan_run(advised_config(config, setting), train=train)[1].fits, setting


def advised_config(config: Any, setting: str) -> Any:
    """Return the config with what a plan advises set."""
    values = config.model_dump(mode="json", exclude_unset=True)
    values.setdefault("train", {})
    for part in setting.split(" with "):
        names, value = part.rsplit(" ", 1)
        for name in names.split(" and "):
            table, _, key = {"width": "search.width", "devices": "memory.devices"}.get(name, name).partition(".")
            values.setdefault(table, {})[key] = {"true": True}.get(
                value, int(value) if value.isdecimal() else value.strip('"')
            )
    return check_config(values, {}, "advised")


def test_the_width_that_is_advised_is_the_largest_that_fits() -> None:
    plan_at = lambda width: planned("2x24GiB", memory__kv_holds="width", search__width=width).fits  # noqa: E731
    config = load_config(None, {**ETS, "memory.devices": "2x24GiB", "memory.kv_holds": "width", "search.width": 256})
    advice = next(iter(settings_that_fit(plan_run(config)[0], parse_devices("2x24GiB"))))
    width = int(advice.removeprefix("width "))
    assert plan_at(width) and not plan_at(width + 1)


ETS_ON_CPU = {"search.strategy": "ets", "search.lambda_diversity": 0.0, "memory.devices": "cpu:8GiB"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"search.kv_budget": "1KiB"},
            "search.kv_budget is 1.0 KiB, which leaves each of 16 questions in flight 0 KV tokens of 6,144 bytes; "
            "a prompt of 256 tokens (memory.prompt_tokens) with a first step of 32 needs 288. "
            "Fits: search.kv_budget 27MiB.",
        ),
        (
            {"search.kv_budget": "24MiB"},
            "search.kv_budget is 24.0 MiB, which leaves each of 16 questions in flight 256 KV tokens of 6,144 bytes; "
            "a prompt of 256 tokens (memory.prompt_tokens) with a first step of 32 needs 288. "
            "Fits: search.kv_budget 27MiB, or search.questions_in_flight 14, or memory.prompt_tokens 224.",
        ),
        (
            {"reward.kv_budget": "1KiB", "search.kv_budget": "1GiB"},
            "reward.kv_budget is 1.0 KiB, which holds 0 KV tokens of 6,144 bytes; a prompt of 256 tokens "
            "(memory.prompt_tokens) with a first step of 32 needs 288. Fits: reward.kv_budget 2MiB.",
        ),
        (
            {"search.kv_budget": "1MiB", "task.questions": 1, "search.first_step_tokens": 1},
            "search.kv_budget is 1.0 MiB, which holds 170 KV tokens of 6,144 bytes; a prompt of 256 tokens "
            "(memory.prompt_tokens) with a first step of 1 needs 257. "
            "Fits: search.kv_budget 2MiB, or memory.prompt_tokens 169.",
        ),
    ],
)
def test_a_kv_budget_below_a_prompt_with_a_first_step_does_not_fit(settings: dict[str, Any], reason: str) -> None:
    config = load_config(None, {**ETS_ON_CPU, **settings})
    job, plan = plan_run(config)
    devices = parse_devices("cpu:8GiB")
    assert not plan.fits
    assert refusal(job, devices, plan) == reason
    for setting in settings_that_fit(job, devices):
        assert plan_run(advised_config(config, setting))[1].fits, setting


def test_a_kv_budget_and_a_device_that_are_both_too_small_are_advised_together() -> None:
    config = load_config(None, {**ETS_ON_CPU, "search.kv_budget": "1KiB", "memory.devices": "cpu:512MiB"})
    job = plan_run(config)[0]
    advice = list(settings_that_fit(job, parse_devices("cpu:512MiB")))
    assert 'search.kv_budget 27MiB with devices "cpu:1GiB"' in advice
    for setting in advice:
        assert plan_run(advised_config(config, setting))[1].fits, setting


def test_a_search_is_refused_at_once_only_for_a_kv_budget_that_no_prompt_fits() -> None:
    with pytest.raises(BudgetError, match=r"search.kv_budget is 1.0 KiB, .* Fits: search.kv_budget 4MiB"):
        refuse_what_cannot_fit(load_config(None, {**ETS_ON_CPU, "search.kv_budget": "1KiB", "task.questions": 2}))
    # 34 tokens hold a prompt of one token and a first step of 32: the search knows how long its prompts are.
    refuse_what_cannot_fit(load_config(None, {**ETS_ON_CPU, "search.kv_budget": 34 * 6144}))


def test_a_search_that_cannot_fit_is_refused_and_one_that_can_is_not() -> None:
    refuse_what_cannot_fit(load_config(None, {"memory.devices": "cpu:2GiB"}))
    with pytest.raises(BudgetError, match="search needs 0.6 GiB of cpu, budget is 0.2 GiB"):
        refuse_what_cannot_fit(load_config(None, {"memory.devices": "cpu:256MiB"}))


def test_beside_a_policy_on_servers_the_reward_model_and_the_embedder_here_are_planned() -> None:
    far = {
        "policy.backend": "vllm",
        "policy.address": "http://127.0.0.1:1",
        "policy.model": "mistralai/Mistral-7B-v0.1",
    }
    near = {"reward.model": "smollm2-135m", "reward.score": "likelihood", "search.strategy": "rebase"}
    small, large = ({**far, **near, "memory.devices": devices} for devices in ("cpu:512MiB", "cpu:4GiB"))
    with pytest.raises(BudgetError, match=r"search needs 1\.3 GiB of cpu, budget is 0\.5 GiB .*: reward weights 0\.5"):
        refuse_what_cannot_fit(load_config(None, small))
    refuse_what_cannot_fit(load_config(None, large))  # The policy would need 28 GiB.
    planned = planned_memory(load_config(None, large))
    assert {*planned.by_phase} == {"score", "search", "hand-over"} and planned.limit_bytes is not None
    assert 2**29 < planned.by_phase["score"] == planned.by_phase["search"] < 2**32
    judged = {
        "reward.model": "seedling-prm",
        "reward.backend": "vllm",
        "reward.address": "http://127.0.0.1:1",
        "search.strategy": "ets",
    }
    embeds = planned_memory(load_config(None, {**far, **judged, "memory.devices": "1x24GiB"}))
    assert {*embeds.by_phase} == {"embed", "search", "hand-over"}
    refuse_what_cannot_fit(load_config(None, {**far, "memory.devices": "1x24GiB"}))  # The devices of the servers.
    assert (
        planned_memory(load_config(None, {**far, "reward.model": None, "search.strategy": "best_of_n"})).by_phase == {}
    )


def test_a_model_of_unknown_shape_is_not_refused_by_the_plan() -> None:
    with pytest.raises(BudgetError):
        refuse_what_cannot_fit(load_config(None, {"policy.model": "smollm2-135m", "memory.devices": "cpu:1MiB"}))
    refuse_what_cannot_fit(load_config(None, {"policy.model": "some/model", "memory.devices": "cpu:1MiB"}))


def test_every_rule_has_a_reason_and_a_source() -> None:
    for id, rule in RULES.items():
        assert id and rule.reason and rule.source


KV_NEEDED: list[tuple[str, str, bool, dict[str, Any]]] = [
    ("1x{}GiB", "sglang", True, {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": None, "train.method": "lora"}),
    ("1x{}GiB", "vllm", True, {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": None, "train.method": "lora"}),
    (
        "1x{}GiB",
        "sglang",
        False,
        {**ETS, "policy.model": "Qwen/Qwen2.5-7B", "reward.model": "Qwen/Qwen2.5-Math-PRM-7B"},
    ),
    ("1x{}GiB", "vllm", False, {**ETS, "memory.kv_holds": "width"}),
    ("2x{}GiB", "sglang", False, {**ETS, "memory.kv_holds": "width"}),
    ("1x{}GiB,cpu:24GiB", "sglang", False, {**ETS, "reward.device": "cpu"}),
]


@pytest.mark.parametrize(("devices", "server", "train", "settings"), KV_NEEDED)
def test_a_plan_fits_only_where_every_server_gets_the_kv_it_needs_within_every_limit(
    devices: str, server: str, train: bool, settings: dict[str, Any]
) -> None:
    found = set()
    for gib in range(14, 60):
        config = load_config(None, {**settings, "memory.devices": devices.format(gib)})
        job, plan = plan_run(config, train=train, server=server)
        found.add(plan.fits)
        needed = {"policy": job.search.path_tokens, "reward": job.search.path_tokens}
        if job.search.kv_holds == "width":
            needed["policy"] = job.search.unshared_tokens
        holds = all(own.kv_tokens[server] >= needed[own.role] for own in plan.servers)
        within = all(
            phase.limit_bytes is None or max(phase.bytes, phase.needed_bytes) <= phase.limit_bytes
            for device in plan.devices
            for phase in device.phases
        )
        assert plan.fits == (holds and within), gib
        for device in plan.devices:
            shown = {line.holder: line.bytes for line in device.phases[0].lines}
            for own in plan.servers:
                if own.device == device.device.name:
                    model = job.policy if own.role == "policy" else job.reward
                    assert model is not None
                    assert shown[f"{own.role} KV"] // model.kv_token_bytes == own.kv_tokens[server]
    assert found == {True, False}


def test_a_server_that_rounding_leaves_without_kv_is_refused_with_its_numbers() -> None:
    settings = {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": None}
    for gib in range(15, 22):
        job, plan = plan_run(load_config(None, {**settings, "memory.devices": f"1x{gib}GiB"}))
        said = refusal(job, parse_devices(f"1x{gib}GiB"), plan) if not plan.fits else ""
        if "rounded down to 0.01" in said:
            break
    assert "of policy KV on cuda:0, and sglang's memory fraction, rounded down to 0.01, leaves" in said
    assert plan_run(load_config(None, {**settings, "memory.devices": f"1x{gib + 1}GiB"}))[1].fits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_optimizer_in_host_memory_is_planned_there_with_masters_of_all_weights(dtype: str) -> None:
    settings = {"policy.model": "Qwen/Qwen2.5-1.5B", "reward.model": None, "memory.devices": "1x80GiB,cpu:64GiB"}
    settings |= {"policy.dtype": dtype}
    gpu, host = plan_run(load_config(None, {**settings, "train.host_optimizer": True}), train=True)[1].devices
    assert "optimizer" not in {line.kind for phase in gpu.phases for line in phase.lines}
    (state,) = [line for line in host.phases[0].lines if line.kind == "optimizer"]
    parameters, largest = 1_543_714_304, 151_936 * 1536
    assert state.bytes == (3 * parameters + largest) * 4
    # On a CPU it is there anyway, and weights in float32 need no masters.
    cpu = {**settings, "memory.devices": "cpu:64GiB", "train.host_optimizer": True, "policy.dtype": "float32"}
    (device,) = plan_run(load_config(None, cpu), train=True)[1].devices
    assert [line.bytes for line in device.phases[0].lines if line.kind == "optimizer"] == [2 * parameters * 4]


@pytest.mark.parametrize(
    ("devices", "advised"),
    [("1x140GiB,cpu:8GiB", "1x140GiB,cpu:34GiB"), ("1x24GiB,cpu:8GiB", "1x132GiB,cpu:34GiB"),
     ("1x24GiB,cpu:64GiB", "1x132GiB,cpu:64GiB"), ("1x24GiB", "1x132GiB")],
)  # fmt: skip
def test_advice_on_devices_names_all_of_them_and_fits_as_written(devices: str, advised: str) -> None:
    settings = {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": None, "train.reference": "host"}
    config = load_config(None, {**settings, "memory.devices": devices})
    job, plan = plan_run(config, train=True)
    assert not plan.fits
    assert list(settings_that_fit(job, parse_devices(devices)))[-1] == f'devices "{advised}"'
    assert plan_run(load_config(None, {**settings, "memory.devices": advised}), train=True)[1].fits


@pytest.mark.parametrize(("kind", "mib"), [("none", 513), ("bfloat16", 365), ("int8", 237)])
def test_quantized_weights_are_counted_in_a_search_on_a_cpu_but_not_in_training(kind: str, mib: int) -> None:
    settings = {"policy.model": "smollm2-135m", "reward.model": None, "policy.quantize": kind}
    plan = plan_run(load_config(None, {**settings, "memory.devices": "cpu:8GiB"}))[1]
    rotations = (7 * 30 + 1) * 64 * 64 * 4 if kind == "int8" else 0
    assert round((lines(plan)["policy weights"].bytes - rotations) / 2**20) == mib
    trained = plan_run(load_config(None, {**settings, "memory.devices": "cpu:8GiB"}), train=True)[1]
    assert round(lines(trained)["policy weights"].bytes / 2**20) == 513


def test_quantized_weights_do_not_change_servers() -> None:
    plain, quantized = (planned("2x24GiB", policy__quantize=kind, reward__quantize=kind) for kind in ("none", "int8"))
    assert plain == quantized


def test_quantized_weights_are_not_advised_because_the_whole_model_is_loaded_first() -> None:
    """With a limit between both sizes the plan of quantized weights fits, but loading them would not."""
    settings = {"policy.model": "smollm2-135m", "reward.model": None, "memory.devices": "cpu:1GiB", "search.width": 2}
    job, _ = plan_run(load_config(None, settings))
    advice = list(settings_that_fit(job, parse_devices("cpu:1GiB")))
    assert advice and not [setting for setting in advice if "quantize" in setting]


@pytest.mark.parametrize("devices", ["1024x1GiB", ",".join(f"1x{1_000 + index}MiB" for index in range(1000))])
def test_a_thousand_devices_are_advised_on_with_few_plans(devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of them would be a million plans."""
    made = 0

    def counted(*arguments: Any) -> Plan:
        nonlocal made
        made += 1
        return plan_job(*arguments)

    monkeypatch.setattr(advice, "plan_job", counted)
    config = load_config(None, {**ETS, "memory.devices": devices})
    job, plan = plan_run(config)
    assert not plan.fits
    advised = list(settings_that_fit(job, parse_devices(devices)))
    assert advised and made < 200
    for setting in advised:
        assert plan_run(advised_config(config, setting))[1].fits, setting


def test_the_largest_devices_are_found_among_many() -> None:
    devices = "500x1GiB,1x24GiB,300x1GiB,1x24GiB"
    job, plan = plan_run(load_config(None, {**ETS, "memory.devices": devices}))
    assert not plan.fits
    assert "policy.device cuda:500 with reward.device cuda:801" in settings_that_fit(job, parse_devices(devices))


def test_many_unused_devices_are_one_remark() -> None:
    assert "cuda:2 to cuda:1023 (1,022 devices): not used" in planned("1024x24GiB").remarks


def test_a_branch_longer_than_the_model_s_context_is_told_with_a_length_that_works() -> None:
    plan = planned("2x80GiB", policy__model="Qwen/Qwen2.5-7B", search__total_tokens=200_000)
    told = [remark for remark in plan.remarks if "search.total_tokens is 200,000" in remark]
    assert len(told) == 2  # Policy and reward model.
    assert "with a prompt of 256 tokens a branch may have 200,256, and Qwen/Qwen2.5-7B takes 131,072" in told[0]
    assert "--context-length 131072" in plan.servers[-1].commands["sglang"]
    assert plan.servers[-1].needed_tokens == 131_072
    works = planned("2x80GiB", policy__model="Qwen/Qwen2.5-7B", search__total_tokens=131_072 - 256, reward__model=None,
                    search__strategy="best_of_n")  # fmt: skip
    assert told[0].endswith("set search.total_tokens to 130816") and not [
        own for own in works.remarks if "takes" in own
    ]
    short = planned("2x80GiB", memory__prompt_tokens=40_000)
    assert any(remark.endswith("set memory.prompt_tokens below 32768") for remark in short.remarks)
