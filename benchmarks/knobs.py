"""What each memory setting does alone: peak resident bytes and CPU seconds against one baseline, as Markdown tables.

    python -m benchmarks.knobs

Every row is a process of its own, on one thread. Peaks are of the whole process; seconds are those of the work, without
imports and without loading. The baseline of an update does nothing to save memory.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.logprobs import verl_logprobs
from benchmarks.peaks import peak_of_run
from palmette import Searcher
from palmette.backends.backend import Expansion
from palmette.backends.local import LocalBackend
from palmette.engine.cuts import Sampling
from palmette.memory.heap import map_large_blocks
from palmette.memory.host import peak_bytes, resident_bytes
from palmette.memory.offload import streamed
from palmette.memory.offload_pages import MappedWeights
from palmette.memory.reclaim import reclaim
from palmette.tasks.load import load_task
from palmette.train.logprobs import plain_logprobs
from palmette.train.model_parts import train_all, train_lora
from palmette.train.samples import Sample
from palmette.train.update import learner as learning
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.loss import LossSettings
from palmette.train.update.reference import response_logprobs
from palmette.zoo.load import load_policy

MODEL = "smollm2-135m"
ROWS, PROMPT_TOKENS, RESPONSE_TOKENS = 4, 64, 128
ROLLOUT_ROWS, ROLLOUT_TOKENS = 16, 16

Knobs = dict[str, Any]

PLAIN: Knobs = {
    "logits": "plain", "checkpointing": False, "rows": ROWS, "lora_rank": None, "mapped": False, "streamed": False,
    "given_up": False, "reclaimed": False,
}  # fmt: skip
UPDATES: dict[str, Knobs] = {
    "baseline": {},
    "log-probabilities in chunks": {"logits": "chunked"},
    "logits divided in place, verl's way": {"logits": "verl"},
    "gradient checkpointing": {"checkpointing": True},
    "half the micro-batch": {"rows": ROWS // 2},
    "LoRA, rank 16": {"lora_rank": 16},
    "large blocks mapped": {"mapped": True},
    "large blocks mapped, half the micro-batch": {"mapped": True, "rows": ROWS // 2},
    "reference streamed from its file": {"streamed": True},
    "KV cache freed after the rollout": {"given_up": True},
    "KV cache freed, then reclaimed": {"given_up": True, "reclaimed": True},
}
_ALL = {"logits": "chunked", "checkpointing": True, "rows": ROWS // 2, "mapped": True, "streamed": True,
        "given_up": True, "reclaimed": True}  # fmt: skip
UPDATES |= {"all of them, all weights": _ALL, "all of them, LoRA": {**_ALL, "lora_rank": 16}}

_SEARCH = {
    "policy.model": MODEL, "reward.model": MODEL, "reward.score": "likelihood", "task.name": "rg:chain_sum",
    "task.questions": 2, "search.strategy": "ets", "search.width": 32, "search.step_tokens": 12,
    "search.total_tokens": 24,
}  # fmt: skip
SEARCHES: dict[str, Knobs] = {
    "baseline": {},
    "`policy.quantize` bfloat16": {"policy.quantize": "bfloat16"},
    "`policy.quantize` int8": {"policy.quantize": "int8"},
    "`search.kv_budget` 24MiB": {"search.kv_budget": "24MiB"},
    "`reward.kv_budget` 24MiB": {"reward.kv_budget": "24MiB"},
    "`search.lambda_diversity` 0": {"search.lambda_diversity": 0.0},
}


def rolled_out(model: Any, tokenizer: Any) -> LocalBackend:
    """Write some steps; return the backend with the KV cache that they left."""
    backend = LocalBackend(model, tokenizer, sampling=Sampling(1.0), batch_rows=ROLLOUT_ROWS)
    prompt = tuple(range(100, 100 + PROMPT_TOKENS))
    backend.expand(
        [Expansion("q", 0, prompt, row, ROLLOUT_TOKENS, row + 1, step_end="\n\n") for row in range(ROLLOUT_ROWS)]
    )
    return backend


def update(knobs: Knobs) -> dict[str, float]:
    """Roll out, ask the reference, then update; return the peak and the seconds.

    The update measured is a second one: optimizer state is there before its first gradient.
    """
    if knobs["mapped"]:
        assert map_large_blocks()
    if knobs["lora_rank"]:
        importlib.import_module("peft")
    policy, tokenizer = load_policy(MODEL)
    reference = load_policy(MODEL)[0]
    with ExitStack() as stack:
        if knobs["logits"] != "chunked":
            rival = plain_logprobs if knobs["logits"] == "plain" else verl_logprobs
            stack.enter_context(
                mock.patch.object(learning, "token_logprobs", lambda *given, chunk_tokens=None: rival(*given))
            )
        begun = time.process_time()
        backend = rolled_out(policy, tokenizer)
        if knobs["given_up"]:
            backend.give_up_cache()
        if knobs["reclaimed"]:
            reclaim(resident_bytes, least_bytes=2**20)
        prompt, response = tuple(range(100, 100 + PROMPT_TOKENS)), tuple(range(200, 200 + RESPONSE_TOKENS))
        advantages = (1.0,) * RESPONSE_TOKENS
        drawn = [Sample(prompt, response, advantages)] * ROWS
        tokens = knobs["rows"] * drawn[0].fed_tokens
        if knobs["streamed"]:
            with streamed(reference, MappedWeights(reference)):
                logprobs = response_logprobs(reference, drawn, micro_batch_tokens=tokens, sharing="off")
        else:
            logprobs = response_logprobs(reference, drawn, micro_batch_tokens=tokens, sharing="off")
        rank = knobs["lora_rank"]
        trained: Any = train_lora(policy, rank=rank) if rank else train_all(policy)
        savings = Savings(knobs["checkpointing"])
        learner = Learner(trained, loss=LossSettings(kl_weight=0.01), savings=savings, sharing="off")
        for weight in trained.parameters():
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        learner.apply()
        learner.forget()
        drawn = [Sample(prompt, response, advantages, None, None, numbers) for numbers in logprobs]
        learner.update(drawn, micro_batch_tokens=tokens)
    return {"peak": peak_bytes() or 0, "seconds": time.process_time() - begun}


def search(knobs: Knobs) -> dict[str, float]:
    """Search; return the peak, the seconds and the tokens that were generated."""
    with tempfile.TemporaryDirectory() as folder:
        with Searcher(settings={**_SEARCH, **knobs}) as searcher:
            task, begun = load_task(searcher.config.task), time.process_time()
            results = searcher.search(task, out=f"{folder}/run")
            seconds = time.process_time() - begun
        peak = peak_of_run(Path(folder) / "run")
    return {"peak": peak, "seconds": seconds, "tokens": statistics.mean(result.tokens for result in results)}


def in_a_process(kind: str, name: str) -> dict[str, float]:
    """Measure one row in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.knobs", "--row", kind, name]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=one_thread)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(kind: str, rows: dict[str, Knobs], only: str) -> None:
    """Print a table, a row as soon as it is measured."""
    tokens = " | tokens a question" if kind == "search" else ""
    print(f"\n| {kind} | peak MiB | against the baseline | CPU s | against the baseline{tokens} |")
    print(f"|---|---:|---:|---:|---:|{'---:|' if tokens else ''}", flush=True)
    base = in_a_process(kind, "baseline")
    for name in rows:
        if only not in name:
            continue
        found = base if name == "baseline" else in_a_process(kind, name)
        less = f"{(found['peak'] - base['peak']) / 2**20:+.0f} MiB" if found is not base else ""
        longer = f"x {found['seconds'] / base['seconds']:.2f}" if found is not base else ""
        grown = f" | {found['tokens']:.0f}" if tokens else ""
        peak, seconds = f"{found['peak'] / 2**20:.0f}", f"{found['seconds']:.1f}"
        print(f"| {name} | {peak} | {less} | {seconds} | {longer}{grown} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows whose name contains this, and the baseline")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        kind, name = options.row
        print(json.dumps(search(SEARCHES[name]) if kind == "search" else update({**PLAIN, **UPDATES[name]})))
        return
    table("update", UPDATES, options.only)
    table("search", SEARCHES, options.only)


if __name__ == "__main__":
    main()
