"""Plans of 7B, 32B and 70B policies on 2 to 128 GPUs, and the formulas of a rank beside published peaks of torchtitan.

    python -m benchmarks.plan_cluster

Published: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (tables 1 to 3) and
benchmarks/llama3_8b_h200_2025-06_torchtitan.md. torchtitan keeps float32 shards and computes in bfloat16; here weights
and gradients are bfloat16 beside float32 masters: 16 bytes a parameter either way. It computes all logits at once, in
bfloat16 and float32 with their gradients: 12 bytes each, counted here in place of chunks, beside what the layers saved.
"""

from dataclasses import dataclass, replace

from palmette.config import load_config
from palmette.planner.cluster.nodes import parse_cluster
from palmette.planner.cluster.plan_cluster import plan_cluster
from palmette.planner.cluster.rank_sizes import rank_update_lines, state_lines
from palmette.planner.cluster.transfers import Bandwidths
from palmette.planner.job import Model, UpdateNeeds
from palmette.planner.lines import total
from palmette.planner.models.find_shape import find_shape
from palmette.planner.run_plan import job_of

GIB = 2**30
POLICIES = ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B", "meta-llama/Llama-3.1-70B")
CLUSTERS = ("1 node x 2x80GiB", "1 node x 8x80GiB", "2 nodes x 8x80GiB", "16 nodes x 8x80GiB")
DEFAULTS = Bandwidths(25e9, 12.5e9)
LOGIT_BYTES = 12
LLAMA = Model("Llama-3.1-8B", find_shape("meta-llama/Llama-3.1-8B"), "bfloat16")


def plans() -> None:
    """Print how each policy is placed on each cluster, with all weights trained and with LoRA."""
    print("| policy | method | GPUs | learner ranks | a rank | workers | a worker's GPU | gathered, reduced | sent |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for policy in POLICIES:
        for method in ("full", "lora"):
            told = {
                "policy.model": policy, "reward.model": None, "reward.score": "none", "search.width": 16,
                "search.strategy": "best_of_n", "search.total_tokens": 4096, "train.questions": 128,
                "train.method": method, "train.micro_batch_tokens": 8192,
            }  # fmt: skip
            config = load_config(None, told)
            search, train = job_of(config), job_of(config, train=True)
            for text in CLUSTERS:
                cluster = parse_cluster(text)
                found = plan_cluster(search, train, cluster, DEFAULTS)
                if not found.plan.fits:
                    phase = found.plan.misfits[0][1]
                    needs = f"does not fit: {phase.needed_bytes / GIB:.0f} GiB in {phase.name}"
                    print(f"| {policy} | {method} | {cluster.devices} | {needs} | | | | | |")
                    continue
                peaks = {device.roles[0]: device.peak.bytes / GIB for device in reversed(found.plan.devices)}
                inside = sum(own.seconds for own in found.moved if own.receiver == "each rank")
                sent = next(own.seconds for own in found.moved if own.what == "new weights")
                print(
                    f"| {policy} | {method} | {cluster.devices} | {found.ranks} | {peaks['learner']:.1f} GiB | "
                    f"{found.workers} x {found.worker_devices} | {peaks['policy']:.1f} GiB | {inside:.1f} s | "
                    f"{sent:.2f} s |"
                )


@dataclass(frozen=True)
class Rank:
    """A rank of a published run: how many there are, tokens of its batch, what it recomputes."""

    ranks: int
    tokens: int
    checkpointing: bool = True


def planned_gib(rank: Rank) -> float:
    """Return what the formulas count for a rank, with all logits at once."""
    update = UpdateNeeds(
        method="full", lora_rank=1, lora_targets=(), optimizer_dtype="float32", questions=rank.ranks, group_size=1,
        prompt_tokens=1, response_tokens=rank.tokens - 1, micro_batch_tokens=rank.tokens,
        checkpointing=rank.checkpointing, reference="none",
    )  # fmt: skip
    lines = [*state_lines(LLAMA, update, rank.ranks), *rank_update_lines(LLAMA, update, rank.ranks)]
    logits = LOGIT_BYTES * rank.tokens * LLAMA.shape.vocabulary
    if rank.checkpointing:
        # The inputs of all layers and what stands behind the last one; layers compute again when logits are freed.
        saved = rank.tokens * LLAMA.shape.hidden * LLAMA.number_bytes * (LLAMA.shape.layers + 6)
        at_head = saved + logits + total(line for line in lines if line.kind not in ("activations", "logits"))
        return max(at_head, total(lines)) / GIB
    return (total(line for line in lines if line.kind != "logits") + logits) / GIB


def published() -> None:
    """Print the formulas beside torchtitan's peaks of Llama 3.1 8B."""
    eight, many = Rank(8, 16_384), Rank(128, 16_384)
    saved = replace(eight, checkpointing=False), replace(many, checkpointing=False)
    rows = [
        ("8 GPUs less 128 GPUs: what is sharded", planned_gib(eight) - planned_gib(many), 82.4 - 67.0),
        ("32 GPUs less 64 GPUs (H200): what is sharded",
         planned_gib(Rank(32, 16_384)) - planned_gib(Rank(64, 16_384)), 47.96 - 46.97),
        ("8 GPUs, 32,768 tokens, all layers recomputed (compiled, Float8)", planned_gib(Rank(8, 32_768)), 83.9),
        ("8 GPUs, 16,384 tokens, some recomputed; here all", planned_gib(eight), 82.4),
        ("the same; here none", planned_gib(saved[0]), 82.4),
        ("128 GPUs, 16,384 tokens, some recomputed; here all", planned_gib(many), 67.0),
        ("the same; here none", planned_gib(saved[1]), 67.0),
    ]  # fmt: skip
    print("\n| Llama 3.1 8B | formula | published | ratio |\n|---|---:|---:|---:|")
    for name, own, theirs in rows:
        print(f"| {name} | {own:.1f} GiB | {theirs:.1f} GiB | {own / theirs:.2f} |")


if __name__ == "__main__":
    plans()
    published()
