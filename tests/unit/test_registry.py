"""Parts by name: built in, given as objects, installed by a package, or written as package.module:name."""

import sys
from pathlib import Path

import pytest

from palmette import registry
from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.search.strategies.rebase import Rebase
from palmette.settings import TaskSettings
from palmette.strategy import Children, Frontier
from palmette.tasks.load import load_task
from palmette.tree import Tree

SOURCE = """
from palmette import Question

def widest(frontier, width, room):
    "All of the width to the oldest leaf."
    return {frontier.leaves[0]: width}

def questions():
    return [Question(f"q{number}", ({"role": "user", "content": str(number)},), str(number)) for number in range(9)]

five = 5

class Outer:
    inner = widest
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a package with two entry points, as pip would; return its module's name."""
    module = f"brought_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(SOURCE)
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[palmette.strategies]\nwidest = {module}:widest\nlost = {module}_gone:x\n"
        f"[palmette.tasks]\ncounting = {module}:questions\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_a_file_of_a_room_is_a_part_under_its_own_name() -> None:
    assert registry.built_ins("strategy") == [
        "beam",
        "best_of_n",
        "dvts",
        "espalier",
        "ets",
        "fixed_tree",
        "rebase",
        "shepherd",
    ]
    assert registry.built_ins("task") == ["jsonl", "ladder", "rg", "words"]
    assert registry.built_ins("judge") == ["gym", "math"]
    assert registry.built_ins("scorer") == ["head", "likelihood", "likelihood_gain", "profile"]
    assert registry.built_ins("backend") == ["local", "openai", "sglang", "vllm"]
    assert registry.built_ins("credit") == ["flat", "spo", "tree_grpo", "treepo", "treerl"]
    assert registry.built_ins("algorithm") == [
        *("cispo", "dapo", "dr_grpo", "grpo", "gspo", "maxrl", "ppo", "reinforce_plus_plus", "rloo"),
    ]
    assert registry.find("strategy", "rebase") is Rebase


def test_a_name_that_is_none_is_told_with_the_nearest_or_with_all() -> None:
    with pytest.raises(ConfigError, match="no strategy is named 'rebsae'. Did you mean 'rebase'?"):
        registry.find("strategy", "rebsae")
    with pytest.raises(
        ConfigError,
        match="There are beam, best_of_n, dvts, espalier, ets, fixed_tree, rebase, shepherd. One of your own",
    ):
        registry.find("strategy", "zzzz")
    assert not registry.is_own("judge", "math")
    assert not registry.is_own("judge", "maths")


def test_an_object_is_found_again_under_a_name_of_its_own() -> None:
    def allocate(frontier: Frontier, width: int, room: int | None) -> Children:
        return {}

    def other(frontier: Frontier, width: int, room: int | None) -> Children:
        return {}

    other.__qualname__ = allocate.__qualname__
    first, second = registry.add("strategy", allocate), registry.add("strategy", other)
    assert first.name != second.name
    assert registry.lasting(first.name) == registry.lasting(second.name) == f"{__name__}:{allocate.__qualname__}"
    assert registry.is_own("strategy", first.name) and not registry.is_reference(first.name)
    assert registry.find("strategy", first.name) is allocate
    assert registry.find("strategy", second.name) is other


def test_parts_of_an_installed_package_are_listed_without_being_imported_and_used_by_name(package: str) -> None:
    listed = {listing.name: listing.source for listing in registry.listings("strategy")}
    assert (listed["widest"], listed["rebase"]) == (package, "palmette")
    assert package not in sys.modules
    strategy = load_config(None, {"search.strategy": "widest", "reward.model": None}).search.build_strategy()
    assert strategy.allocate(Frontier(Tree((1,)), (0,), (1.0,)), 7, None) == {0: 7}
    task = load_task(TaskSettings(name="counting", questions=3, skip=2))
    assert [question.id for question in task.questions] == ["q2", "q3", "q4"]
    with pytest.raises(ConfigError, match=r"strategy lost cannot be imported: ModuleNotFoundError"):
        registry.find("strategy", "lost")


def test_a_reference_reaches_into_a_module_and_is_told_where_it_ends(package: str) -> None:
    assert registry.find("strategy", f"{package}:Outer.inner").__name__ == "widest"
    with pytest.raises(ConfigError, match=rf"{package} has no 'widst'. Did you mean 'widest'?"):
        registry.find("strategy", f"{package}:widst")
    with pytest.raises(ConfigError, match="gives a int, not a Task or Question objects"):
        load_task(TaskSettings(name=f"{package}:five"))


def test_a_module_beside_the_run_does_not_take_the_place_of_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math.py").write_text("raise RuntimeError('shadowed')\n")
    (tmp_path / "yaml.py").write_text("raise RuntimeError('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert registry.find("scorer", "yaml:safe_load").__module__ == "yaml"
    assert sys.path[-1] == str(tmp_path)


def test_a_part_is_called_with_the_arguments_that_it_names() -> None:
    class Built:
        def __init__(self, settings: int) -> None:
            self.settings = settings

    def made(settings: int, extra: int) -> tuple[int, int]:
        return settings, extra

    def scored(step: str) -> float:
        return 1.0

    assert registry.build(Built, settings=3, extra=4).settings == 3
    assert registry.build(made, settings=3, extra=4) == (3, 4)
    assert registry.build(scored, settings=3) is scored  # a plain function is a part, not one that builds one
    assert registry.call_by_name(lambda **given: given, a=1, b=2) == {"a": 1, "b": 2}
