"""`palmette plan` as a command: what it prints, how it fails, what it does not import."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.zoo.cache import cache_root
from tests.command import palmette as preloaded

ETS = [
    "--policy", "peiyi9979/mistral-7b-sft", "--reward", "peiyi9979/math-shepherd-mistral-7b-prm",
    "--embedder", "math-similarity/Bert-MLM_arXiv-MP-class_zbMath", "--strategy", "ets", "--width", "64",
]  # fmt: skip


def plan(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return preloaded("plan", *arguments, cwd=cwd)


def values(*arguments: str) -> dict[str, Any]:
    done = plan(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_prints_the_layout_of_ets() -> None:
    done = plan(*ETS, "--devices", "2x24GiB")
    assert done.returncode == 0, done.stderr
    assert re.search(r"cuda:0 \(24.0 GiB\): policy\. Peak", done.stdout)
    assert re.search(r"cuda:1 \(24.0 GiB\): reward, embedder\. Peak", done.stdout)
    assert "math-shepherd-mistral-7b-prm --port 30020" in done.stdout
    assert done.stdout.count("--mem-fraction-static 0.85") == 1
    assert done.stdout.count("--mem-fraction-static 0.90") == 1
    assert "policy-alone: policy on cuda:0, reward on cuda:1, because" in done.stdout


def test_with_the_diversity_weight_zero_it_prints_090_twice_and_no_embedder() -> None:
    done = plan(*ETS, "--devices", "2x80GiB", "--set", "search.lambda_diversity=0")
    assert done.stdout.count("--mem-fraction-static 0.90") == 2
    assert "embedder weights" not in done.stdout


def test_json_has_bytes() -> None:
    found = values(*ETS, "--devices", "2x24GiB", "--server", "vllm")
    assert [device["roles"] for device in found["devices"]] == [["policy"], ["reward", "embedder"]]
    first = found["devices"][0]["phases"][0]
    assert first["bytes"] == sum(line["bytes"] for line in first["lines"])
    assert {line["holder"]: line["bytes"] for line in first["lines"]}["policy weights"] == 7_241_732_096 * 2
    assert found["fits"] is True and found["servers"][0]["order"] == 1


def test_what_does_not_fit_is_refused_in_one_line_with_exit_code_3() -> None:
    done = plan(*ETS, "--devices", "1x24GiB")
    said = [line for line in done.stderr.splitlines() if line.startswith("palmette: ")]
    assert (done.returncode, len(said)) == (3, 1)
    assert re.search(r"search needs [\d.]+ GiB of cuda:0, budget is 22.8 GiB \(95% of 24.0 GiB\): ", said[0])
    assert 'Fits: devices "1x' in said[0]


def test_an_embedder_in_the_wrong_place_is_an_error_until_it_is_wanted() -> None:
    done = plan(*ETS, "--devices", "2x80GiB", "--embed_device", "0")
    assert done.returncode == 2
    assert "set embedder.device to cuda:1" in done.stderr
    assert plan(*ETS, "--devices", "2x80GiB", "--embed_device", "0", "--any-embed-device").returncode == 0


def test_a_parameter_file_of_the_original_release_is_planned(tmp_path: Path) -> None:
    (tmp_path / "ets.yaml").write_text("width: 256\nlambdac: 1\nlambdas: 0\nmax_tokens: 2048\n")
    done = plan(
        "--ets-config", "ets.yaml", "--policy", "Qwen/Qwen2.5-7B", "--reward", "Qwen/Qwen2.5-Math-PRM-7B",
        "--devices", "2x24GiB", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--context-length 2304" in done.stdout
    assert "unshared, width 256" in done.stdout


def test_this_machine_is_planned_where_no_devices_are_declared() -> None:
    found = values("--train", "--set", "train.method=lora")
    assert found["devices"][-1]["device"] == "cpu"
    assert found["devices"][-1]["total_bytes"] > 0


def test_a_page_shows_every_line_and_lets_no_name_run(tmp_path: Path) -> None:
    model = tmp_path / "<script>alert(1)</script>"
    model.mkdir(parents=True)
    text = (Path(__file__).parents[2] / "src/palmette/zoo/seedling/config.json").read_text()
    (model / "config.json").write_text(text)
    page = tmp_path / "plan.html"
    assert plan("--policy", str(model), "--devices", "1x24GiB", "--html", str(page)).returncode == 0
    written = page.read_text()
    assert "<script" not in written
    assert "&lt;script&gt;" in written
    assert "default-src 'none'" in written
    assert "policy weights" in written and "<svg" in written


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for arguments, said in (
        (["--devices", "two"], "write them like '2x24GiB'"),
        (["--policy", "nobody/nothing", "--devices", "1x24GiB"], "is not known"),
        (["--server", "tgi"], "choose sglang or vllm"),
        (["--html", "/nowhere/at/all.html"], "cannot write the plan's page"),
    ):
        done = plan(*arguments)
        assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


def test_planning_imports_no_model_library() -> None:
    code = (
        "import sys; sys.argv = ['palmette', 'plan', '--devices', '2x24GiB', '--train']\n"
        "from palmette.commands.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'scipy', 'numpy', 'sentence_transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_search_that_cannot_fit_stops_before_a_weight_is_read(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "palmette", "search", "--out", "run", "--set",
         "memory.devices=cpu:128MiB"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "search needs" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert not (tmp_path / "run").exists()


def test_a_prediction_without_an_update_is_an_error_that_says_what_to_add() -> None:
    done = preloaded("plan", "--predict")
    assert done.returncode == 2
    assert "without --train none is planned: add --train" in done.stderr


def test_settings_that_nothing_reads_are_unknown_keys() -> None:
    for setting in ("train.logits=plain", "train.optimizers=adamw"):
        done = plan("--train", "--set", setting)
        assert done.returncode == 2
        assert f"unknown key '{setting.partition('=')[0]}'" in done.stderr


def test_a_kv_budget_that_holds_no_prompt_is_refused_with_one_that_does() -> None:
    ets = ["--strategy", "ets", "--devices", "cpu:8GiB"]
    done = plan(*ets, "--set", "search.kv_budget=1KiB", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["fits"], found["suggestions"]) == (3, False, ["search.kv_budget 27MiB"])
    assert found["refusal"].startswith("search.kv_budget is 1.0 KiB, which leaves each of 16 questions in flight 0 KV")
    assert values(*ets, "--set", "search.kv_budget=27MiB")["fits"]


def test_another_model_is_never_suggested_for_one_that_is_not_listed() -> None:
    done = plan("--policy", "Qwen/Qwen3-30B", "--reward", "none")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and "Did you mean" not in said
    assert "Give a local folder with its config.json, or where the hub can be reached: hf download" in said


def test_a_refused_plan_has_its_reason_and_suggestions_in_json_and_no_commands() -> None:
    refused = ["--policy", "Qwen/Qwen2.5-7B", "--reward", "none", "--devices", "1x24GiB", "--train"]
    done = plan(*refused, "--set", "train.method=lora", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["fits"], found["servers"]) == (3, False, [])
    assert found["refusal"].startswith("a rollout needs 36.7 GiB of cuda:0, budget is 22.8 GiB")
    assert found["suggestions"] == ["policy.dtype bfloat16", 'devices "1x39GiB"']
    fitting = values(*refused[:5], "1x39GiB", "--train", "--set", "train.method=lora")
    assert (fitting["refusal"], fitting["suggestions"], fitting["servers"]) == (None, [], [])
    printed = plan(*refused, "--set", "train.method=lora")
    assert printed.returncode == 3
    assert "launch_server" not in printed.stdout and "vllm serve" not in printed.stdout


def test_notes_are_printed_where_stdout_is_no_terminal() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "palmette", "plan", *ETS, "--devices", "1x80GiB"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert "made of" in done.stdout and "prefill of 8,192 tokens, CUDA graphs" in done.stdout


def test_devices_without_a_unit_and_folders_without_a_config_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "nocfg").mkdir()
    for arguments, said in (
        (["--set", "memory.devices=24"], "24 of what? Write '24GiB' or 'cpu:24GiB' if GiB are meant"),
        (["--devices", "2x24"], "24 of what? Write '2x24GiB' if GiB are meant"),
        (["--policy", "./nocfg", "--reward", "none"], "the folder has no config.json"),
    ):
        done = plan(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr


@pytest.mark.parametrize(
    ("name", "folder"),
    [("seedling", Path(__file__).parents[2] / "src/palmette/zoo/seedling"), ("sapling", cache_root() / "sapling")],
)
def test_a_server_command_with_a_zoo_name_comes_with_a_remark(name: str, folder: Path) -> None:
    remarks = values("--policy", name, "--reward", "none", "--devices", "1x24GiB")["remarks"]
    assert f"a server cannot load {name}, a name of palmette's zoo: give it {folder} instead" in remarks


def test_a_search_on_declared_gpus_that_are_not_there_is_an_error_with_a_value_that_works(tmp_path: Path) -> None:
    def search(devices: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "palmette", "search", "--out", "run", "--set", f"memory.devices={devices}"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PATH": ""},
        )  # fmt: skip

    for devices, works in (("2x24GiB", "cpu:24GiB"), ("2x24GiB,cpu:64MiB", "cpu:64MiB")):
        done = search(devices)
        assert done.returncode == 2
        assert f"Set memory.devices to {works}, or" in " ".join(done.stderr.split())
        assert not (tmp_path / "run").exists()
