from pathlib import Path

import pytest

from palmette.config import Config, known_keys, load_config, parse_override
from palmette.errors import ConfigError
from palmette.search.strategies.ets import Ets, EtsSettings


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read_and_overrides_lie_over_it(tmp_path: Path) -> None:
    path = write(tmp_path, "search:\n  width: 8\n  depth: 3\nseed: 5\n")
    config = load_config(path, {"search.width": 64})
    assert (config.search.width, config.search.depth, config.seed) == (64, 3, 5)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == load_config()
    assert load_config().search == Config().search


def test_an_unknown_key_fails_with_the_file_and_the_nearest_known_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "search:\n  widht: 8\n"))
    assert str(caught.value).endswith("run.yaml: unknown key 'search.widht'. Did you mean 'search.width'?")


def test_every_fault_is_said_in_one_pass(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "search:\n  width: 0\n  depth: many\nsed: 1\n"))
    message = str(caught.value)
    assert "search.width cannot be 0" in message
    assert "search.depth cannot be 'many'" in message
    assert "Did you mean 'seed'?" in message


def test_a_fault_of_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^command line: search.strategy cannot be 'rebas'.*Did you mean 'rebase'"):
        load_config(write(tmp_path, "seed: 1"), {"search.strategy": "rebas"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- 1\n- 2\n", "a table of keys, this file holds a list"),
        ("a: [1\n", "not valid YAML at line 2"),
        ("search: 5\n", "search cannot be 5"),
        ("seed: true\n", "seed cannot be True"),
        ("policy: {temperature: .nan}\n", "policy.temperature cannot be nan"),
        ("a: " + "[" * 5000, "not valid YAML"),
        ("seed: 1\nseed: 2\n", "the key 'seed' stands twice"),
        ("seed: 2001-99-99\n", "not valid YAML"),
        ("seed: 99999999999999999999999\n", "seed cannot be so large a number"),
        ("policy: {temperature: 1.0e-45}\n", "give 0 for the likeliest token, or at least 0.01"),
        ("task: {verify_seconds: 4000.0}\n", "less than or equal to 3600"),
        ("a: &x [q, q, q, q, q, q, q]\nseed: [*x, *x, *x]\n", "seed cannot be a list"),
    ],
)
def test_broken_files_are_refused_with_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(write(tmp_path, text))


def test_a_missing_file_and_a_binary_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.yaml: cannot read"):
        load_config(tmp_path / "nowhere.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        load_config(tmp_path / "x.yaml")


def test_overrides_are_read_as_yaml_scalars() -> None:
    assert parse_override("search.width=64") == ("search.width", 64)
    assert parse_override("task.prompt=a=b") == ("task.prompt", "a=b")
    assert parse_override("reward.model=null") == ("reward.model", None)
    assert parse_override("policy.temperature=1e-1") == ("policy.temperature", 0.1)
    for bad in ("search.width", "=3", "a=[1", "a=2001-99-99", "a=!!int x", "a=" + "[" * 3000):
        with pytest.raises(ConfigError, match="--set"):
            parse_override(bad)


def test_an_override_cannot_go_below_a_value() -> None:
    with pytest.raises(ConfigError, match="'seed' holds a value"):
        load_config(None, {"seed": 1, "seed.x": 2})


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    missing = [key for key in known_keys() if f"`{key}`" not in text]
    assert missing == []


def test_the_reward_model_that_was_trained_for_the_policy_is_taken_unless_another_is_named() -> None:
    assert (load_config().reward.model, load_config().reward.score) == ("seedling-ripe", "likelihood")
    assert load_config(None, {"policy.model": "smollm2-135m"}).reward.model is None
    assert load_config(None, {"policy.model": "smollm2-135m", "reward.model": "x"}).reward.model == "x"
    assert load_config(None, {"reward.model": None}).reward.model is None


def test_a_strategy_that_goes_by_scores_needs_a_reward_model() -> None:
    with pytest.raises(ConfigError, match="^config: search.strategy 'rebase' goes by scores, and there is no reward"):
        load_config(None, {"policy.model": "smollm2-135m", "search.strategy": "rebase"})
    assert load_config(None, {"search.strategy": "rebase"}).search.strategy == "rebase"


def test_a_fault_is_told_in_a_line_however_large_the_value(tmp_path: Path) -> None:
    keys = "".join(f"k{number}: 1\n" for number in range(900))
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "search: {strategy: " + "x" * 100_000 + "}\n" + keys))
    assert len(str(caught.value)) < 2000
    assert str(caught.value).endswith("and 896 more")


def test_diversity_is_what_was_given_or_published_for_the_nearest_width() -> None:
    def diversity(width: int, given: float | None = None) -> float:
        settings = {"search.strategy": "ets", "search.width": width, "search.lambda_diversity": given}
        strategy = load_config(None, settings).search.build_strategy()
        assert isinstance(strategy, Ets)
        return strategy.diversity

    assert [diversity(width) for width in (1, 16, 31, 33, 64, 127, 129, 256, 4096)] == [
        1.5, 1.5, 1.5, 1.4, 1.4, 1.4, 1.45, 1.45, 1.45,
    ]  # fmt: skip
    assert diversity(16, 0.0) == 0
    assert diversity(16, 0.7) == 0.7


def test_only_ets_that_values_diversity_uses_clusters() -> None:
    def uses(strategy: str, weight: float | None) -> frozenset[str]:
        overrides = {"search.strategy": strategy, "search.lambda_diversity": weight}
        return frozenset(load_config(None, overrides).search.build_strategy().uses)

    assert uses("ets", None) == {"scores", "room", "clusters"}
    assert uses("ets", 0.0) == {"scores", "room"}
    assert uses("rebase", 1.5) == uses("beam", 1.5) == uses("dvts", 1.5) == {"scores"}
    assert uses("best_of_n", 1.5) == set()


@pytest.mark.parametrize("amount", ["2GiB", "100 MB", 4096])
def test_a_budget_is_an_amount_of_memory(amount: str | int) -> None:
    config = load_config(None, {"search.strategy": "ets", "search.kv_budget": amount})
    assert config.search.kv_budget == amount


@pytest.mark.parametrize("amount", ["much", "-1", "0", 0, -5, "2 GiBs", True, 1.5, ""])
def test_a_budget_that_is_none_is_refused(amount: object) -> None:
    with pytest.raises(ConfigError, match=r"search\.kv_budget"):
        load_config(None, {"search.strategy": "ets", "search.kv_budget": amount})


def test_a_budget_that_nobody_would_keep_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kv_budget is not kept by strategy 'rebase': set search.strategy to 'ets'"):
        load_config(None, {"search.strategy": "rebase", "search.kv_budget": "1GiB"})


def test_braces_and_line_breaks_of_a_shell_are_taken_as_meant() -> None:
    assert parse_override("task.prompt={question}") == ("task.prompt", "{question}")
    overrides = dict([parse_override("task.prompt=Q: {question}"), parse_override(r"task.step_end=\n")])
    task = load_config(None, overrides).task
    assert (task.prompt, task.step_end) == ("Q: {question}", "\n")
