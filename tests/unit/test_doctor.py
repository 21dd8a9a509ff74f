"""The doctor: causes of real failures, what is wrong with runs, configs and machines; hostile text stays text."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from palmette.agents.doctor.diagnose import diagnose
from palmette.agents.doctor.examine import examine
from palmette.commands.app import app
from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.event_log import EventLog
from palmette.events import OomRetry, RunStarted, UpdateDone
from palmette.failures.find import signatures
from palmette.practices.find import practices
from palmette.run.folder import recorded_values

pytestmark = pytest.mark.unit
_FOLDER = Path(__file__).parent / "failures"


def _texts(name: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return rows


_REVISED = (
    *("written_from", "gathered"),
    *("first_held_out", "second_held_out", "third_held_out", "fourth_held_out", "fifth_trial", "sixth_held_out"),
)
_REVISED_FROM = [row for name in _REVISED for row in _texts(name)]


@pytest.mark.parametrize("row", _REVISED_FROM, ids=lambda row: row["from"].removeprefix("https://github.com/"))
def test_the_cause_of_a_known_failure_is_told(row: dict[str, str]) -> None:
    found = diagnose(row["text"])
    assert found.id == row["cause"] and found.evidence and found.advice


@pytest.mark.parametrize(
    ("name", "missed"),
    [
        ("held_out", {"2001"}),
        ("seventh_held_out", {"19059", "13260"}),
        ("eighth_held_out", {"11097", "16997", "7117", "9696", "1595", "2879"}),  # No signature was revised for these.
    ],
)
def test_of_these_texts_all_but_some_are_told_right(name: str, missed: set[str]) -> None:
    rows = [(row["from"].rpartition("/")[2], row["cause"], diagnose(row["text"]).id) for row in _texts(name)]
    assert {number for number, cause, told in rows if told != cause} == missed  # docs/doctor.md says how many.


def test_of_thirty_real_failures_at_least_25_are_told_and_each_has_its_source() -> None:
    public = _texts("fifth_trial")
    made = [row for row in _REVISED_FROM if not row["from"].startswith("https://github.com/")]
    owners = [row["from"].split("/")[3] for row in public]
    assert Counter(owners) == dict.fromkeys(("vllm-project", "sgl-project", "verl-project", "huggingface"), 5)
    assert len(public) == 20 and len(made) == 10
    assert sum(diagnose(row["text"]).id == row["cause"] for row in [*public, *made]) >= 25


def test_words_of_people_count_only_where_no_program_has_said_anything() -> None:
    assert diagnose("it crashes after we upgraded to 0.9.1").id == "missing-package"
    found = diagnose("it crashes after we upgraded to 0.9.1\nOSError: [Errno 28] No space left on device")
    assert (found.id, found.others) == ("disk-full", ())


def test_every_signature_names_a_practice_that_exists() -> None:
    named = {signature.practice for signature in signatures() if signature.practice is not None}
    assert named <= set(practices()) and len({signature.id for signature in signatures()}) == len(signatures())


def test_numbers_are_read_and_advice_follows_from_them() -> None:
    text = next(row["text"] for row in _REVISED_FROM if row["from"].endswith("/20305"))
    found = diagnose(text)
    assert (found.numbers["left"], found.numbers["size"]) == ("31.44", "47.38")
    assert found.advice[0].startswith("--gpu-memory-utilization 0.65:")  # 31.44 / 47.38 = 0.66, less a hundredth.


def test_a_setting_is_planned_again_for_a_model_and_a_device_that_are_told() -> None:
    log = (
        "INFO Initializing an LLM engine with config: model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=131072\n"
        "Memory profiling results: total_gpu_memory=23.58GiB\n"
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (23648)."
    )
    planned = diagnose(log).planned
    assert planned is not None and "32768 tokens fits (with 131072" in planned and "--max-model-len 32768" in planned


def test_an_update_that_ran_out_of_memory_is_planned_again() -> None:
    log = (
        "trainer = GRPOTrainer(model='Qwen/Qwen2.5-7B')\n  File 'adamw.py', in _multi_tensor_adamw\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 130.00 MiB. GPU 0 has a total capacity of 79.15 "
        "GiB of which 87.19 MiB is free."
    )
    found = diagnose(log)
    assert found.id == "oom-optimizer" and found.planned is not None and "train.method lora" in found.planned


def test_a_log_that_is_not_known_is_said_to_be_so_with_its_last_error() -> None:
    found = diagnose("all is well\nFrobnicationError: the frob is not nicated\nbye")
    assert (found.id, found.evidence, found.advice) == (None, "FrobnicationError: the frob is not nicated", ())


@pytest.mark.parametrize(
    "hostile",
    [
        "{model.__class__} CUDA out of memory. Tried to allocate {tried} GiB",
        "\x1b[2J\x1b]0;owned\x07 RuntimeError: CUDA out of memory\x00",
        "advantages " * 30_000 + "out of memory",
        "palmette: " + "x" * 300_000,
        "model='../../../../etc/passwd' CUDA out of memory. total capacity of 24.00 GiB",
        "(" * 200_000,
    ],
    ids=["format", "terminal", "repeats", "long line", "path", "brackets"],
)
def test_hostile_text_stays_text(hostile: str) -> None:
    found = diagnose(hostile)
    shown = [found.evidence, *found.advice, *found.numbers.values(), found.planned or ""]
    assert all(text.isprintable() and len(text) < 3000 for text in shown)
    assert found.planned is None or "passwd" not in found.planned


def _run(folder: Path, config: dict[str, Any], numbers: list[dict[str, float]], *more: Any) -> Path:
    with EventLog(folder) as log:
        log.write(RunStarted("0", recorded_values(load_config(None, config)), run="a"))
        for update, table in enumerate(numbers, 1):
            log.write(UpdateDone(update, update, table, {}, {}))
        for event in more:
            log.write(event)
    return folder


def test_a_run_is_told_what_is_wrong_with_it(tmp_path: Path) -> None:
    retry = OomRetry("update", "token", 4096, 2048, "", 0, 0, 0, 2**30)
    numbers = [{"cut_share": 0.7, "signal_share": 0.0, "reward": 0.0, "entropy": 0.5}] * 3
    folder = _run(tmp_path, {"search.total_tokens": 64}, numbers, retry, replace(retry, limit=None))
    found = {finding.about: finding for finding in examine(folder) if finding.is_wrong}
    assert found["answers-not-cut"].advice == ("search.total_tokens 128",)
    assert "3 updates in a row" in found["signal-in-groups"].found
    assert (
        "2 retries, the last in update: 4096 tokens did not fit beside 1.0 GiB" in found["out-of-memory retries"].found
    )


def test_a_sound_run_has_nothing_wrong_and_its_log_is_read(tmp_path: Path) -> None:
    folder = _run(tmp_path, {}, [{"cut_share": 0.0, "signal_share": 1.0, "reward": 0.5, "entropy": 0.5}] * 3)
    assert not [finding for finding in examine(folder) if finding.is_wrong]
    (folder / "train.log").write_text("OSError: [Errno 28] No space left on device")
    assert [finding.about for finding in examine(folder) if finding.is_wrong] == ["disk-full"]


def test_a_config_is_planned_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "policy: {model: Qwen/Qwen2.5-7B}\nreward: {model: null}\nmemory: {devices: '1x80GiB,cpu:256GiB'}\n"
        "train: {learning_rate: 1.0e-4}\nsearch: {width: 1}\n"
    )
    wrong = {finding.about: finding for finding in examine(path) if finding.is_wrong}
    assert wrong.keys() == {"group-of-two", "learning-rate", "plan-first"}
    assert "an update needs" in wrong["plan-first"].found and wrong["plan-first"].advice == ("train.method lora",)
    path.write_text("search: {widht: 1}")
    assert next(finding.found for finding in examine(path)).endswith("Did you mean 'search.width'?")


def test_what_cannot_be_examined_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder of a run, no log and no config"):
        examine(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"no run, there is no events\.jsonl in it"):
        examine(tmp_path)


def test_the_machine_is_told_with_what_a_default_run_holds() -> None:
    found = {finding.about: finding.found for finding in examine(None)}
    assert {"cores", "processor", "threads", "memory", "limits", "disk", "versions", "default search"} <= found.keys()
    assert found["default search"].startswith("holds at most")


def test_the_command_shows_findings_and_exits_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    log.write_text("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    assert app(["doctor", str(log)], standalone_mode=False) == 1
    assert capsys.readouterr().out.startswith("WRONG  static-fraction: SGLang's static fraction")
    assert app(["doctor", str(log), "--json"], standalone_mode=False) == 1
    assert [finding["about"] for finding in json.loads(capsys.readouterr().out)] == ["static-fraction"]
