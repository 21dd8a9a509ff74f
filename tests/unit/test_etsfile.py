from pathlib import Path

import pytest

from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.run.ets_file import as_device, read_ets_file
from palmette.search.strategies.ets import Ets

PUBLISHED = """\
temperature: 1.0 # sample temperature
max_step_tokens: 256
max_tokens: 1024
select_method: "softmax_costmodel"
num_threads: 8 # threads in SGLang
softmax_temperature: 0.2 # temperature in the softmax
reward_model_type: "llemma"
policy_model_type: "llemma"
store_path: ./exp_results/ets_{width}_math500/ # dir for storing the results
width: {width} # sample N={width} solutions
lambdac: 1.0
lambdas: {lambdas}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "ets.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("width", "lambdas"), [(16, 1.5), (64, 1.4), (256, 1.45)])
def test_the_published_files_become_a_config(tmp_path: Path, width: int, lambdas: float) -> None:
    read = read_ets_file(write(tmp_path, PUBLISHED.format(width=width, lambdas=lambdas)))
    config = load_config(None, read.settings)
    strategy = config.search.build_strategy()
    assert isinstance(strategy, Ets)
    assert (config.search.strategy, config.search.width) == ("ets", width)
    assert (strategy.settings.lambda_kv, strategy.diversity) == (1.0, lambdas)
    assert (config.search.step_tokens, config.search.total_tokens, config.search.depth) == (256, 1024, 25)
    assert (strategy.settings.kv_cost, config.search.aggregate) == ("nodes", "last")
    assert (config.policy.temperature, strategy.settings.rebase_temperature) == (1.0, 0.2)
    assert config.search.questions_in_flight == 8
    assert config.out == f"./exp_results/ets_{width}_math500"


def test_every_key_is_told_once_with_what_it_became(tmp_path: Path) -> None:
    notes = read_ets_file(write(tmp_path, PUBLISHED.format(width=16, lambdas=1.5))).notes
    for line in PUBLISHED.splitlines():
        key = line.partition(":")[0]
        assert sum(said.startswith(f"{key}: ") for said in notes) == 1
    assert "lambdas: 1.5 becomes search.lambda_diversity: 1.5" in notes
    assert "select_method: 'softmax_costmodel' becomes search.strategy: ets" in notes


@pytest.mark.parametrize(("method", "strategy"), [("softmax", "rebase"), ("beam_search", "beam"), ("dvts", "dvts")])
def test_the_other_methods_are_known(tmp_path: Path, method: str, strategy: str) -> None:
    settings = read_ets_file(write(tmp_path, f"select_method: {method}\nlambdac: 1")).settings
    assert settings == {"search.strategy": strategy, "search.lambda_kv": 1.0}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lambda_c: 1.0", r"unknown key 'lambda_c' .* Did you mean 'lambdac'\?"),
        ("q: 1", r"unknown key 'q' .* It reads temperature, "),
        ("3: 1", r"unknown key '3'"),
        ("select_method: mcts", r"select_method 'mcts' is none of softmax_costmodel, softmax, "),
        ("select_method: [ets]", "select_method cannot be a list"),
        ("reward_model_type: [[a, a], [a, a]]", "reward_model_type cannot be a list"),
        ("- 1", "a config is a table of keys"),
        ("width: {", "not valid YAML"),
    ],
)
def test_what_the_original_would_not_know_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_ets_file(write(tmp_path, text))


def test_a_wrong_value_is_refused_under_the_name_it_became(tmp_path: Path) -> None:
    settings = read_ets_file(write(tmp_path, "width: many\ntemperature: 1")).settings
    with pytest.raises(ConfigError, match=r"search\.width cannot be 'many'"):
        load_config(None, settings)


def test_a_device_number_is_a_cuda_device() -> None:
    assert [as_device(text) for text in ("1", "0", "cpu", "cuda:2", "auto")] == [
        "cuda:1", "cuda:0", "cpu", "cuda:2", "auto",
    ]  # fmt: skip


def test_without_a_method_the_file_is_one_for_ets(tmp_path: Path) -> None:
    read = read_ets_file(write(tmp_path, "width: 4\nlambdac: 1.0"))
    assert read.settings["search.strategy"] == "ets"
    assert "select_method is not there: search.strategy: ets" in read.notes
