"""A search that does not fit the address space it may use, against the same search with all there is."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from palmette.event_log import read_events
from palmette.events import Event, MemoryTimeline, OomRetry, QuestionFinished, QuestionStarted, WaveDone

ROOT = Path(__file__).parents[2]
SEEDLING = ROOT / "src" / "palmette" / "zoo" / "seedling"


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a policy with the seedling's tokenizer, whose layer is so wide that a row's activations take 400 KB."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=21, hidden_size=64, intermediate_size=2**15, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for path in SEEDLING.iterdir():
        if "token" in path.name or "template" in path.name:
            shutil.copy(path, folder)
    return folder


def grown(folder: Path) -> list[Event]:
    """Return what a run asked, grew and answered, question by question.

    The last digit of a log-probability moves with the batch.
    """
    found: list[QuestionStarted | WaveDone | QuestionFinished] = []
    for event in read_events(folder):
        if isinstance(event, WaveDone):
            found.append(replace(event, nodes=tuple(replace(node, logprobs=()) for node in event.nodes)))
        elif isinstance(event, QuestionStarted | QuestionFinished):
            found.append(event)
    return [*sorted(found, key=lambda event: event.question)]


def test_a_search_that_does_not_fit_finishes_with_the_same_trees_and_shows_every_rung(
    tmp_path: Path, wide_model: Path
) -> None:
    config = {
        "policy": {"model": str(wide_model)},
        "reward": {"model": str(wide_model), "score": "likelihood", "batch_rows": 8},
        "task": {"questions": 3, "grade": 1, "verify_seconds": 3600.0},
        "search": {"strategy": "rebase", "width": 40, "depth": 2, "step_tokens": 8, "questions_in_flight": 3},
    }
    tmp_path.joinpath("run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.capped", str(tmp_path / "runs"), str(tmp_path / "run.yaml"), "0.4"],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    free, capped = tmp_path / "runs" / "free", tmp_path / "runs" / "0.4"
    assert (capped / "taken").exists(), done.stderr
    assert grown(capped) == grown(free)
    assert not [event for event in read_events(free) if isinstance(event, OomRetry)]
    retries = [event for event in read_events(capped) if isinstance(event, OomRetry)]
    waves = [retry for retry in retries if retry.guard == "wave"]
    # All rows that were running at the tick, of 120 that were started.
    assert waves and 60 < waves[0].tried <= 120 and waves[0].limit == waves[0].tried // 2
    assert all(retry.limit is not None and retry.limit < retry.tried for retry in retries if not retry.spared)
    assert all("allocate" in retry.reason for retry in retries)
    timelines = [event for event in read_events(capped) if isinstance(event, MemoryTimeline)]
    assert {phase.name for phase in timelines[-1].phases} >= {"search", "expand", "score"}
    assert {retry.began for retry in retries} == {timelines[-1].began}
