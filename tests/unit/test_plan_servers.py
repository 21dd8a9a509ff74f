"""Planned servers against the two servers' own rules on shared cards, written down here a second time."""

import json
import math
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from palmette.config import load_config
from palmette.planner.devices import Device
from palmette.planner.job import Job, Model
from palmette.planner.lines import Plan
from palmette.planner.models.find_shape import find_shape, known_config
from palmette.planner.models.shard import can_shard, shard
from palmette.planner.plan import plan_job
from palmette.planner.run_plan import job_of, plan_run
from palmette.planner.runnable import run_remarks
from palmette.planner.search_sizes import CUDA_CONTEXT_BYTES
from palmette.planner.servers import activation_bytes, context_bytes

GIB = 2**30
POLICIES = ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-1.5B", "meta-llama/Llama-3.1-8B", "google/gemma-2-9b", "microsoft/phi-4"]
REWARDS = [None, "Qwen/Qwen2.5-Math-PRM-7B", "peiyi9979/math-shepherd-mistral-7b-prm"]


class RefusedError(Exception):
    """The server does not start, or a process finds no memory."""


@dataclass
class Card:
    """A GPU: what is taken of it, by whomever."""

    total: int
    taken: int

    def take(self, size: float) -> None:
        self.taken += math.ceil(size)
        if self.taken > self.total:
            raise RefusedError(f"{self.taken - self.total} bytes too many")

    @property
    def free(self) -> int:
        return self.total - self.taken


def start(command: str, card: Card, model: Model, activations: int) -> int:
    """Start a server by its own rule; return its KV tokens. Raises RefusedError where it would end with an error."""
    card.take(CUDA_CONTEXT_BYTES)
    longest = int(re.search(r"--(?:context-length|max-model-len) (\d+)", command)[1])  # type: ignore[index]
    if vllm := re.search(r"--gpu-memory-utilization ([\d.]+)", command):
        requested = math.ceil(card.total * float(vllm[1]))
        if card.free < requested:
            raise RefusedError("free memory is less than desired GPU memory utilization")
        kv = requested - model.weight_bytes - activations
        if kv < math.ceil(longest / 16) * 16 * model.kv_token_bytes:
            raise RefusedError("to serve at least one request, more KV cache is needed")
    else:
        fraction = float(re.search(r"--mem-fraction-static ([\d.]+)", command)[1])  # type: ignore[index]
        free_before = card.free
        card.take(model.weight_bytes)
        kv = int(card.free - (1 - fraction) * free_before)
        card.taken -= model.weight_bytes
        if kv <= 0:
            raise RefusedError("not enough memory: increase --mem-fraction-static")
    card.take(model.weight_bytes + kv + activations)
    return kv // model.kv_token_bytes


def run(job: Job, plan: Plan, cards: dict[str, Card], engine: str) -> dict[str, int]:
    """Start what a plan says in its order: the learner, the servers, the embedder. Return KV tokens by role."""
    devices = {device.device.name: device for device in plan.devices}
    for name, card in cards.items():
        for line in devices[name].phases[0].lines if name in devices else ():
            if line.holder.startswith(("learner", "LoRA", "optimizer")):
                card.take(line.bytes)
    tokens = {}
    for server in plan.servers:
        model = job.policy if server.role == "policy" else job.reward
        assert model is not None
        device = devices[server.device].device
        activations = activation_bytes(model, device)
        tokens[server.role] = start(server.commands[engine], cards[server.device], model, activations)
    for name, card in cards.items():
        embed = [phase for phase in devices[name].phases if phase.name == "embed"] if name in devices else []
        for line in embed[0].lines if embed else ():
            if line.holder.startswith("embedder"):
                card.take(line.bytes)
    return tokens


def shared_devices(chance: random.Random) -> tuple[Device, ...]:
    found = []
    for index in range(chance.choice([1, 1, 2])):
        total = chance.choice([16, 24, 40, 48, 80, 96]) * GIB - chance.randrange(GIB // 2)
        free = total - (0 if chance.random() < 0.1 else chance.randrange(int(0.7 * total)))
        found.append(Device(f"cuda:{index}", "cuda", total, free))
    return tuple(found)


def test_no_plan_that_fits_a_shared_card_refuses_to_start() -> None:
    chance = random.Random(11)
    fitting = {"sglang": 0, "vllm": 0}
    while sum(fitting.values()) < 500:
        engine, train = chance.choice(["sglang", "vllm"]), chance.random() < 0.3
        settings: dict[str, Any] = {
            "policy.model": chance.choice(POLICIES), "search.width": chance.choice([4, 16, 64]),
            "memory.prompt_tokens": chance.randrange(1, 600), "search.total_tokens": chance.randrange(64, 4000),
            "memory.kv_holds": chance.choice(["path", "path", "width"]), "train.method": "lora",
            "memory.inference_share": chance.choice([0.95, 1.0]), "memory.devices": "1x24GiB",
        }  # fmt: skip
        reward = chance.choice(REWARDS)
        settings |= {"reward.model": reward, "search.strategy": "best_of_n" if reward is None else "ets"}
        devices = shared_devices(chance)
        job = job_of(load_config(None, settings), train=train, server=engine)
        plan = plan_job(job, devices)
        if not plan.fits:
            continue
        fitting[engine] += 1
        cards = {
            device.name: Card(device.total_bytes or 0, (device.total_bytes or 0) - (device.free_bytes or 0))
            for device in devices
        }
        tokens = run(job, plan, cards, engine)
        for server in plan.servers:
            assert abs(tokens[server.role] - server.kv_tokens[engine]) <= 1
            assert tokens[server.role] >= server.needed_tokens - 1
    assert min(fitting.values()) > 150


@pytest.mark.parametrize(("total", "free", "tokens"), [(24, 18, 0), (80, 40, 300_000)])
def test_sglang_gets_a_share_of_what_others_leave(total: int, free: int, tokens: int) -> None:
    config = load_config(None, {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": None, "memory.devices": "1x24GiB"})
    job, _ = plan_run(config)
    plan = plan_job(job, [Device("cuda:0", "cuda", total * GIB, free * GIB)])
    fraction, weights = plan.servers[0].fractions["sglang"], 7_615_616_512 * 2
    found = int(fraction * (free * GIB - 450 * 2**20)) - weights
    assert abs(plan.servers[0].kv_tokens["sglang"] - found // 57_344) <= 1
    assert found // 57_344 > tokens
    assert plan.servers[0].fractions["vllm"] <= (free * GIB - 450 * 2**20) / (total * GIB)


def test_with_training_the_plan_says_that_the_learner_loads_before_sglang() -> None:
    settings = {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": None, "train.method": "lora"}
    config = load_config(None, {**settings, "memory.devices": "1x80GiB"})
    said = "load the learner with its optimizer state (15.1 GiB on cuda:0) before SGLang starts there"
    assert not any("learner" in remark for remark in plan_run(config)[1].remarks)
    job = job_of(config, train=True)
    plan = plan_job(job, [Device("cuda:0", "cuda", 80 * GIB)])
    assert any(said in remark for remark in plan.remarks)
    card, command = Card(80 * GIB, 0), plan.servers[0].commands["sglang"]
    activations = activation_bytes(job.policy, plan.devices[0].device)
    tokens = start(command, card, job.policy, activations)  # Before the learner, against the plan.
    assert tokens > 1.2 * plan.servers[0].kv_tokens["sglang"]
    with pytest.raises(RefusedError):
        card.take(15 * GIB)


@pytest.mark.parametrize("architecture", ["Qwen2ForRewardModel", "LlamaForSequenceClassification"])
def test_a_reward_model_with_a_head_of_its_own_is_served_as_one(architecture: str, tmp_path: Path) -> None:
    values = known_config("Qwen/Qwen2.5-7B")
    assert values is not None
    (tmp_path / "config.json").write_text(json.dumps({**values, "architectures": [architecture]}))
    settings = {"policy.model": "Qwen/Qwen2.5-7B", "reward.model": str(tmp_path), "search.strategy": "rebase"}
    plan = plan_run(load_config(None, {**settings, "memory.devices": "2x80GiB"}))[1]
    policy, reward = (next(own for own in plan.servers if own.role == role) for role in ("policy", "reward"))
    assert reward.commands["sglang"].endswith(" --is-embedding") and reward.commands["vllm"].endswith(
        "--runner pooling"
    )
    assert "--is-embedding" not in policy.commands["sglang"] and "--runner" not in policy.commands["vllm"]


def test_vllm_needs_less_kv_for_layers_that_see_a_window_only() -> None:
    settings = {"policy.model": "openai/gpt-oss-20b", "reward.model": None, "search.total_tokens": 60_000 - 256}
    for engine, tokens in (("sglang", 60_000 * 2), ("vllm", 60_000 + 128 + 2048)):
        plan = plan_run(load_config(None, {**settings, "memory.devices": "1x24GiB"}), server=engine)[1]
        line = next(line for line in plan.devices[0].phases[0].lines if line.kind == "kv")
        assert line.needed_bytes == tokens * 12 * 1024 * 2


LLAMA_70B = {"policy.model": "meta-llama/Llama-3.3-70B-Instruct", "reward.model": None}


def test_a_policy_that_fits_no_gpu_is_cut_for_as_few_as_it_fits() -> None:
    plan = plan_run(load_config(None, {**LLAMA_70B, "memory.devices": "4x80GiB"}))[1]
    assert plan.fits
    server = plan.servers[0]
    assert server.commands["sglang"].endswith(" --tp-size 2")
    assert server.commands["vllm"].endswith(" --tensor-parallel-size 2")
    assert server.commands["vllm"].startswith("CUDA_VISIBLE_DEVICES=0,1 ") and server.device == "cuda:0, cuda:1"
    assert [device.roles for device in plan.devices] == [("policy",), ("policy",)]
    lines = [{line.holder: line.bytes for line in device.phases[0].lines} for device in plan.devices]
    # All matrices, embeddings and the head are halved, norms are not.
    norms = (80 * 2 + 1) * 8192
    assert lines[0] == lines[1]
    assert lines[0]["policy weights"] == 2 * ((70_553_706_496 - norms) // 2 + norms)
    token = 2 * 80 * 4 * 128 * 2  # Four of eight key heads.
    assert server.kv_tokens["sglang"] == lines[0]["policy KV"] // token
    assert any(rule.id == "tensor-parallel" for rule in plan.rules)
    smaller = plan_run(load_config(None, {**LLAMA_70B, "memory.devices": "4x48GiB"}))[1]
    assert "--tp-size 4" in smaller.servers[0].commands["sglang"]


def test_policy_and_reward_model_are_cut_for_gpus_of_their_own() -> None:
    settings = {**LLAMA_70B, "reward.model": "Qwen/Qwen2.5-Math-PRM-72B", "search.strategy": "rebase"}
    plan = plan_run(load_config(None, {**settings, "memory.devices": "4x80GiB"}))[1]
    assert plan.fits
    assert {own.role: own.device for own in plan.servers} == {"policy": "cuda:0, cuda:1", "reward": "cuda:2, cuda:3"}
    assert all("--tp-size 2" in own.commands["sglang"] for own in plan.servers)
    few = plan_run(load_config(None, {**settings, "memory.devices": "3x80GiB"}))[1]
    assert not few.fits


def test_key_heads_are_not_cut_below_one_and_latent_caches_not_at_all() -> None:
    few = find_shape("Qwen/Qwen3-30B-A3B")  # Four key heads.
    assert can_shard(few, 8) and not can_shard(find_shape("Qwen/Qwen2.5-7B"), 8)  # 28 heads.
    assert shard(few, 8).kv_bytes_per_token("bfloat16") == few.kv_bytes_per_token("bfloat16") // 4
    keys = [own for own in shard(few, 8).linear if own.name.endswith("k_proj")]
    assert [(own.inputs, own.outputs) for own in keys] == [(2048, 128)]
    latent = find_shape("deepseek-ai/DeepSeek-V2-Lite")
    assert shard(latent, 4).kv_bytes_per_token("bfloat16") == latent.kv_bytes_per_token("bfloat16")
    for shape in (few, latent):
        assert shape.parameters / 4 < shard(shape, 4).parameters < shape.parameters / 4 * 1.1
    fp8 = find_shape("deepseek-ai/DeepSeek-V3")  # Experts of 2,048: blocks of 128 divide by 16.
    assert can_shard(fp8, 16) and shard(fp8, 16).weight_bytes("bfloat16") < fp8.weight_bytes("bfloat16") / 14


def test_a_gpu_that_others_use_is_not_grouped_with_a_free_one() -> None:
    job = job_of(load_config(None, {**LLAMA_70B, "memory.devices": "4x80GiB"}))
    free = [80, 20, 80, 75]
    plan = plan_job(job, [Device(f"cuda:{at}", "cuda", 80 * GIB, gib * GIB) for at, gib in enumerate(free)])
    assert plan.fits and plan.servers[0].device == "cuda:0, cuda:2"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_cut_model_starts_by_the_servers_rules_on_every_gpu(engine: str) -> None:
    job = job_of(load_config(None, {**LLAMA_70B, "memory.devices": "4x80GiB"}), server=engine)
    for free in range(60, 81):
        devices = [Device(f"cuda:{at}", "cuda", 80 * GIB, free * GIB) for at in range(4)]
        plan = plan_job(job, devices)
        if not plan.fits:
            continue
        model = replace(job.policy, shards=len(plan.servers[0].device.split(", "))).sharded()
        card = Card(80 * GIB, (80 - free) * GIB + context_bytes(model) - CUDA_CONTEXT_BYTES)
        tokens = start(plan.servers[0].commands[engine], card, model, activation_bytes(model, devices[0]))
        assert abs(tokens - plan.servers[0].kv_tokens[engine]) <= 1


def test_a_plan_says_of_each_role_whether_palmette_runs_it_today() -> None:
    settings = {
        "policy.model": "Qwen/Qwen2.5-7B",
        "reward.model": "Qwen/Qwen2.5-Math-PRM-7B",
        "search.strategy": "rebase",
    }
    job, plan = plan_run(load_config(None, {**settings, "memory.devices": "2x80GiB"}))
    policy, reward = (remark for remark in plan.remarks if remark.startswith("palmette runs the"))
    assert policy == (
        "palmette runs the policy Qwen/Qwen2.5-7B inside one process: yes, in float32 (policy.dtype); by servers: "
        "yes, with sglang or vllm in bfloat16"
    )
    assert reward.endswith("by servers: yes, with sglang or vllm in bfloat16")
    assert "inside one process: yes, in float32 (reward.dtype)" in reward
    assert job.reward is not None
    unknown = run_remarks(replace(job, reward=replace(job.reward, name="mine")))[1]
    assert "no, Qwen2ForProcessRewardModel is no class of transformers: it needs a reward.profile" in unknown
    skywork = run_remarks(replace(job, reward=replace(job.reward, name="Skywork-o1-Open-PRM-Qwen-2.5-7B")))[1]
    assert skywork.endswith("by servers: no, they do not load its head")
    assert run_remarks(job, ["vllm"])[0].endswith("by servers: yes, with vllm in bfloat16")
    others = {
        "openai/gpt-oss-20b": "no, its weights are stored in mxfp4",
        "deepseek-ai/DeepSeek-V2-Lite": "no, the engine does not run a deepseek_v2",
        "Qwen/Qwen2.5-VL-7B-Instruct": "no, it is not a language model alone",
    }
    for name, said in others.items():
        config = load_config(None, {"policy.model": name, "reward.model": None, "memory.devices": "1x80GiB"})
        assert any(said in remark for remark in plan_run(config)[1].remarks)
