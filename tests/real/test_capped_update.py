"""Updates that do not fit the address space they may use, against the same ones with all there is."""

import json
import os
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from palmette.event_log import read_events
from palmette.events import MemoryTimeline, OomRetry

ROOT = Path(__file__).parents[2]
SEEDLING = ROOT / "src" / "palmette" / "zoo" / "seedling"
GROUPS, GROUP_SIZE = 4, 4
CAPPED = "0.4"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folders of two updates of a wide model, free and capped to a share of what that took."""
    folder = tmp_path_factory.mktemp("capped")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=21, hidden_size=64, intermediate_size=2**14, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    for path in SEEDLING.iterdir():
        if "token" in path.name or "template" in path.name:
            shutil.copy(path, folder / "model")
    command = [
        sys.executable, "-m", "benchmarks.capped_update", str(folder / "runs"), "--model", str(folder / "model"),
        "--groups", str(GROUPS), "--group-size", str(GROUP_SIZE), "--prompt-tokens", "8", "--response-tokens", "24",
        "--learning-rate", "1e-3", "--eps", "1e-4", "--shares", CAPPED,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "ended" not in done.stdout, done.stdout + done.stderr
    return folder / "runs"


def told(folder: Path) -> Any:
    return json.loads(folder.joinpath("told.json").read_text(encoding="ascii"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(folder / "weights.pt"))


def retries(folder: Path) -> list[OomRetry]:
    return [event for event in read_events(folder) if isinstance(event, OomRetry)]


def test_without_a_cap_each_update_is_one_piece(runs: Path) -> None:
    assert retries(runs / "free") == []
    assert [update["pieces"] for update in told(runs / "free")["updates"]] == [1, 1]


def test_updates_that_do_not_fit_end_with_the_same_weights(runs: Path) -> None:
    free, capped, again = (weights(runs / name) for name in ("free", CAPPED, f"{CAPPED}-again"))
    start = LlamaForCausalLM.from_pretrained(runs.parent / "model").state_dict()
    for name, weight in free.items():
        # The second update steps by what the first left in the optimizer: it was the same too.
        torch.testing.assert_close(capped[name], weight, rtol=0, atol=1e-6 * float(weight.abs().max()), msg=name)
        assert torch.equal(capped[name], again[name]), name  # Nothing was counted twice: no cap, the same pieces.
        assert float((weight - start[name]).abs().max()) > 1e-4, name
    for ours, theirs in zip(told(runs / CAPPED)["updates"], told(runs / "free")["updates"], strict=True):
        assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-5)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_every_failure_is_a_rung_of_its_run(runs: Path) -> None:
    found = retries(runs / CAPPED)
    assert found and len(found) == len(told(runs / CAPPED)["failures"])
    assert all(retry.limit is not None and retry.limit < retry.tried for retry in found)
    assert all(retry.guard == "update" and "allocate" in retry.reason for retry in found)
    timelines = [event for event in read_events(runs / CAPPED) if isinstance(event, MemoryTimeline)]
    assert {phase.name for phase in timelines[-1].phases} == {"update"}
    assert {retry.began for retry in found} == {timelines[-1].began}


def test_a_backward_pass_that_dies_has_added_gradients_and_is_counted_once(runs: Path) -> None:
    notes = told(runs / CAPPED)  # That it is counted once, the bits of the run without a cap have shown.
    half = [failure for failure in notes["failures"] if 0 < failure["gradients"] < notes["weights"]]
    assert half and all(failure["in_backward"] for failure in half)


def test_groups_stay_whole_as_long_as_a_piece_holds_several(runs: Path) -> None:
    pieces = told(runs / CAPPED)["pieces"]
    assert [group for piece in pieces for group in piece] == sorted(GROUP_SIZE * [*range(GROUPS)]) * 2
    for piece in pieces:
        counts = [len(list(same)) for _, same in groupby(piece)]
        assert len(counts) == 1 or set(counts) == {GROUP_SIZE}
