import sys
from pathlib import Path
from typing import Any

import pytest

from palmette.config import OTHER_WORDS, check_config, known_keys, load_config, recorded_config
from palmette.errors import ConfigError
from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.settings import Config
from palmette.yaml_file import parse_override


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


def test_every_default_of_training_has_its_reason_or_its_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `train.")]
    assert [row[0] for row in rows if len(row) != 4 or not row[3].strip()] == []
    assert len(rows) == len([key for key in known_keys() if key.startswith("train.")])


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


# A strategy's own keys


@pytest.mark.parametrize("strategy", ["best_of_n", "beam", "rebase", "ets"])
def test_a_key_of_another_strategy_is_accepted_so_that_one_file_serves_several(strategy: str) -> None:
    config = load_config(None, {"search.strategy": strategy, "search.lambda_kv": 2.0})
    assert config.search.options["lambda_kv"] == 2.0
    with pytest.raises(ConfigError, match=r"^command line: search\.lambda_kv cannot be -1\.0: .*greater than or equal"):
        load_config(None, {"search.strategy": strategy, "search.lambda_kv": -1.0})
    with pytest.raises(ConfigError, match=r"search\.kv_cost cannot be 'byte': choose 'nodes' or 'tokens'"):
        load_config(None, {"search.strategy": strategy, "search.kv_cost": "byte"})


@pytest.mark.parametrize("strategy", ["best_of_n", "ets"])
def test_a_key_that_no_strategy_declares_is_refused_with_the_nearest(strategy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"search.strategy": strategy, "search.lamda_kv": 2.0})
    told = "command line: unknown key 'search.lamda_kv'. Did you mean 'search.lambda_kv'?"
    assert str(caught.value) == told


def test_options_stand_beside_the_other_keys_of_search_wherever_a_config_is_written() -> None:
    config = load_config(None, {"search.strategy": "ets", "search.lambda_kv": 2.0})
    written = config.model_dump(mode="json")
    assert (written["search"]["lambda_kv"], written["search"]["rebase_temperature"]) == (2.0, 0.2)
    assert "options" not in written["search"]
    assert check_config(written, {}, "config") == config
    assert EtsSettings.model_fields.keys() == config.search.options.keys()  # with nothing left to choose
    assert {"search.lambda_kv", "search.rebase_temperature"} < set(known_keys())
    assert "search.options" not in known_keys()
    with pytest.raises(ConfigError, match="unknown key 'search.options'"):
        load_config(None, {"search.options": {"lambda_kv": 2.0}})


def test_an_old_name_of_a_key_is_told_with_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml: 'search\.fold' is called 'search\.aggregate' now"):
        load_config(write(tmp_path, "search: {fold: last}\n"))
    with pytest.raises(ConfigError, match="command line: 'policy.weights' is called 'policy.quantize' now"):
        load_config(None, {"policy.weights": "int8"})


def test_a_strategy_that_is_none_is_told_among_all_other_faults(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "search: {strategy: rebas, width: 0}\n"))
    message = str(caught.value)
    assert "search.width cannot be 0" in message
    assert "search.strategy cannot be 'rebas': no strategy is named 'rebas'. Did you mean 'rebase'?" in message


OWN = """
from pathlib import Path
from typing import Any
from pydantic import Field
from palmette import Strategy, StrategySettings

Path(__file__).with_suffix(".imported").touch()


class Settings(StrategySettings):
    patience: int = Field(3, ge=1, description="waves without a better score")


class Patient(Strategy):
    Settings = Settings

    def allocate(self, frontier, width, room):
        return {frontier.leaves[0]: min(width, self.settings.patience)}


def first(frontier, width, room):
    return {frontier.leaves[0]: width}


not_a_strategy = 5
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module of a user's own, which leaves a file beside it once it is imported."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_strategy_of_the_users_own_declares_its_keys(own: str) -> None:
    strategy = f"{own}:Patient"
    config = load_config(None, {"search.strategy": strategy})
    assert config.search.options == {"patience": 3}
    built = load_config(None, {"search.strategy": strategy, "search.patience": 5, "search.width": 7}).search
    assert (built.build_strategy().settings.patience, built.build_strategy().width) == (5, 7)
    with pytest.raises(ConfigError, match=r"search\.patience cannot be 0"):
        load_config(None, {"search.strategy": strategy, "search.patience": 0})
    with pytest.raises(ConfigError, match="unknown key 'search.patients'"):
        load_config(None, {"search.strategy": strategy, "search.patients": 1})
    with pytest.raises(ConfigError, match="unknown key 'search.patience'"):
        load_config(None, {"search.strategy": "rebase", "search.patience": 1})
    plain = load_config(None, {"search.strategy": f"{own}:first", "reward.model": None})
    assert plain.search.build_strategy().uses == set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (":Patent", "has no 'Patent'. Did you mean 'Patient'?"),
        (":not_a_strategy", "a strategy is a subclass of palmette.Strategy or a function"),
        ("_gone:x", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_reference_that_is_no_strategy_is_refused(own: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"search.strategy": own + name})
    assert said in str(caught.value)


def test_a_config_from_elsewhere_is_checked_without_importing_what_it_names(own: str, tmp_path: Path) -> None:
    values: dict[str, dict[str, Any]] = {
        "policy": {"model": f"{own}:policy"},
        "reward": {"model": f"{own}:reward"},
        "task": {"name": f"{own}:task", "judge": f"{own}:judge"},
        "embedder": {"model": f"{own}:embedder"},
        "search": {"strategy": f"{own}:Patient", "patience": "any", "unknown": 1},
    }
    config = check_config(values, {}, "events.jsonl", imports=False)
    assert config.search.options == {"patience": "any", "unknown": 1}  # nobody was asked what they mean
    assert config.model_dump(mode="json")["search"]["patience"] == "any"
    assert recorded_config(config.model_dump(mode="json"), "events.jsonl", imports=False) == config
    with pytest.raises(ConfigError, match=r"events\.jsonl: search\.width cannot be 0"):
        check_config({"search": {**values["search"], "width": 0}}, {}, "events.jsonl", imports=False)
    with pytest.raises(ConfigError, match=r"search\.lambda_kv cannot be -1\.0"):  # built in: still checked
        check_config({"search": {"strategy": "ets", "lambda_kv": -1.0}}, {}, "events.jsonl", imports=False)
    imported = tmp_path / f"{own}.imported"
    assert own not in sys.modules
    assert not imported.exists()
    with pytest.raises(ConfigError, match=r"search\.patience cannot be 'any'"):
        check_config(values, {}, "events.jsonl")
    assert imported.exists()


def test_a_key_is_guessed_in_another_table_and_by_its_last_word() -> None:
    for key, meant in {
        "width": "search.width",
        "widht": "search.width",
        "search.temperature": "policy.temperature",
        "train.lr": "train.learning_rate",
        "train.beta": "train.kl_weight",
        "train.num_generations": "search.width",
        "train.rewrads": "train.rewards",
    }.items():
        with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
            load_config(None, {key: 4})
    # Like train.kl as a whole, and not at all by its own word.
    with pytest.raises(ConfigError, match=r"unknown key 'train.xl'. See docs/config.md"):
        load_config(None, {"train.xl": 4})


def test_what_other_libraries_call_a_key_is_one_of_ours() -> None:
    assert set(OTHER_WORDS.values()) <= set(known_keys())


def test_files_are_put_to_a_policy_as_it_was_trained_to_read_them() -> None:
    assert load_config(None, {"task.name": "mine.jsonl"}).task.format == "ladder"
    assert load_config(None, {"task.name": "mine.jsonl", "policy.model": "smollm2-135m"}).task.format == "math"
    assert load_config(None, {"task.format": "gym"}).task.format == "gym"


def test_drafts_and_sharing_can_be_turned_off_without_quotes() -> None:
    assert load_config(None, {"train.sharing": False}).train.sharing == "off"
    assert load_config(None, {"policy.drafts": False}).policy.drafts == "off"
    assert load_config(None, {"policy.drafts": "off"}).policy.drafts == "off"
    assert load_config(None, {}).policy.drafts == "auto"
    with pytest.raises(ConfigError, match="policy.drafts cannot be True: choose 'auto' or 'off'"):
        load_config(None, {"policy.drafts": True})


def test_lists_and_tables_can_be_given_where_a_key_takes_them() -> None:
    assert parse_override("train.log_to=[tensorboard]") == ("train.log_to", ["tensorboard"])
    assert parse_override("train.rewards={judge: 1}") == ("train.rewards", {"judge": 1})
    assert parse_override("task.generator={max_terms: 3}") == ("task.generator", {"max_terms": 3})
    assert parse_override("task.prompt={question}") == ("task.prompt", "{question}")
    assert load_config(None, {"train.log_to": ["tensorboard"]}).train.log_to == ("tensorboard",)
    with pytest.raises(ConfigError, match=r"train.log_to cannot be 'tensorboard': write a list, like \[tensorboard\]"):
        load_config(None, {"train.log_to": "tensorboard"})
