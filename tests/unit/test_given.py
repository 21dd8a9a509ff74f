"""What is given from Python: the same run with and without a folder, under names that say where a part came from."""

import gc
import json
import re
import threading
import weakref
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

import palmette
from palmette import registry
from palmette.backends.backend import Expansion
from palmette.backends.scripted import ScriptedBackend
from palmette.commands.evaluate import evaluate
from palmette.commands.plugins import plugins
from palmette.commands.search import search
from palmette.config import load_config
from palmette.event_log import read_events
from palmette.events import RunStarted
from palmette.run.parts import Parts
from palmette.run.sweep import Cell, Sweep
from palmette.settings import Config
from palmette.yaml_file import parse_override


def one_step(expansion: Expansion, above: str) -> str:
    return "=4; so=5$"


def half(answer: str | None) -> float:
    return 0.5


def quarter(answer: str | None) -> float:
    return 0.25


def recorded(folder: Path) -> dict[str, Any]:
    first = next(read_events(folder))
    assert isinstance(first, RunStarted)
    return first.config


@pytest.mark.parametrize("out", [None, "run"])
@pytest.mark.parametrize(
    ("searcher", "task", "reward"),
    [
        ({}, {}, 0.0),
        ({"judge": half}, {}, 0.5),
        ({}, {"judge": quarter}, 0.25),
        ({"judge": half}, {"judge": quarter}, 0.5),
    ],
)
def test_a_judge_judges_the_same_with_and_without_a_folder(
    tmp_path: Path, out: str | None, searcher: dict[str, Any], task: dict[str, Any], reward: float
) -> None:
    told = {key: f"{__name__}:{part.__name__}" for key, part in task.items()}
    asked = palmette.load_task("ladder", questions=1, **told)
    with palmette.Searcher(ScriptedBackend(one_step), None, width=1, **searcher) as made:
        (result,) = made.search(asked, out=None if out is None else tmp_path / out)
    assert [leaf.reward for leaf in result.leaves] == [reward]


@pytest.mark.parametrize("out", [None, "run"])
def test_the_text_that_ends_a_solution_is_the_searchers_or_else_the_tasks(tmp_path: Path, out: str | None) -> None:
    stops: list[str | None] = []

    def spy(expansion: Expansion, above: str) -> str:
        stops.append(expansion.stop)
        return "=4$"

    place = None if out is None else tmp_path / out
    asked = palmette.load_task("ladder", questions=1, stop="END")
    palmette.Searcher(ScriptedBackend(spy), None, width=1).search(asked, out=place)
    palmette.Searcher(ScriptedBackend(spy), None, width=1, settings={"task.stop": "STOP"}).search(asked)
    assert stops == ["END", "STOP"]


def question(name: str) -> palmette.Question:
    return palmette.Question(name, ({"role": "user", "content": name},))


def test_numbers_behind_repeated_ids_make_no_id_that_was_given() -> None:
    with palmette.Searcher(ScriptedBackend(one_step), None, width=1) as searcher:
        results = searcher.search([question(name) for name in ("a", "a", "a-2", "b", "a", "a-2", "b")])
    assert [result.question.id for result in results] == ["a", "a-3", "a-2", "b", "a-4", "a-2-2", "b-2"]


def twice() -> list[palmette.Question]:
    return [question("same"), question("same")]


def test_a_task_with_one_id_twice_is_refused_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(palmette.ConfigError, match="two questions have the id 'same'"):
        palmette.load_task(f"{__name__}:twice")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(palmette.ConfigError, match="two questions have the id 'same'"):
        search(task=f"{__name__}:twice")
    assert list(tmp_path.iterdir()) == []


class Keep(palmette.Strategy):
    """Gives all to the oldest leaf."""

    class Settings(palmette.StrategySettings):
        """A key that REBASE has too, with another default."""

        rebase_temperature: float = 0.5
        keep: int = 1

    @property
    def uses(self) -> frozenset[Any]:
        return frozenset()

    def allocate(self, frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
        return {frontier.leaves[0]: width}


def begin(folder: Path, searcher: palmette.Searcher) -> None:
    """Record one of three questions."""
    stream = searcher.stream(["1", "2", "3"], out=folder)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # A generator.


def test_an_object_is_recorded_as_one_and_given_again_to_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"width": 2, "questions_in_flight": 1}
    begin(tmp_path, palmette.Searcher(ScriptedBackend(one_step), None, Keep, **settings))
    told = recorded(tmp_path)
    assert told["policy"]["backend"] == "palmette.backends.scripted:ScriptedBackend()"
    assert told["search"]["strategy"] == f"{__name__}:Keep"
    with pytest.raises(palmette.ConfigError, match=r"ScriptedBackend\(\) was given from Python as an object"):
        list(palmette.Searcher.of_run(tmp_path).resume(tmp_path, ["1", "2", "3"]))
    again = palmette.Searcher(ScriptedBackend(one_step), None, Keep, **settings)
    assert len(list(again.resume(tmp_path, ["1", "2", "3"]))) == 2


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"width": 3}, "search.width 2, and would be resumed with 3"),
        ({"seed": 1}, "seed 0, and would be resumed with 1"),
        ({"strategy": Keep}, "search.strategy 'best_of_n'"),
        ({"judge": half}, "task.judge 'auto'"),
        ({"policy": "seedling"}, "policy.model"),
    ],
)
def test_a_run_is_not_resumed_with_other_parts_or_settings(tmp_path: Path, other: dict[str, Any], key: str) -> None:
    given: dict[str, Any] = {"policy": ScriptedBackend(one_step), "reward": None, "width": 2, "questions_in_flight": 1}
    begin(tmp_path, palmette.Searcher(**given))
    with pytest.raises(palmette.RunError, match=f"was recorded with {key}"):
        list(palmette.Searcher(**{**given, **other}).resume(tmp_path, ["1", "2", "3"]))
    elsewhere = palmette.Searcher(**given, settings={"memory.guard": False})  # No tree depends on it.
    assert len(list(elsewhere.resume(tmp_path, ["1", "2", "3"]))) == 2


def test_a_run_is_resumed_with_its_own_task_whatever_the_searchers(tmp_path: Path) -> None:
    searcher = palmette.Searcher(ScriptedBackend(one_step), None, width=1, questions_in_flight=1)
    stream = searcher.stream(palmette.load_task("ladder", questions=3, grade=1), out=tmp_path)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(list(searcher.resume(tmp_path))) == 2


def test_an_empty_folder_is_no_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(palmette.RunError, match="is no run folder"):
        list(palmette.Searcher(ScriptedBackend(one_step), None).resume(tmp_path, ["1"]))
    assert list(tmp_path.iterdir()) == []


def test_a_reference_is_imported_whatever_objects_were_given_and_a_reloaded_class_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = palmette.Searcher(ScriptedBackend(one_step), None, Keep(), width=1)
    assert first.config.search.build_strategy().settings == Keep.Settings()
    assert registry.find("strategy", f"{__name__}:Keep") is Keep

    old = Keep
    reloaded = type("Keep", (palmette.Strategy,), {**vars(Keep)})
    monkeypatch.setitem(globals(), "Keep", reloaded)
    for place, made in (("old", old), ("new", reloaded)):
        searcher = palmette.Searcher(ScriptedBackend(one_step), None, made, width=1)
        assert type(searcher.config.search.build_strategy()) is made
        assert searcher.search("1", out=tmp_path / place).strategy == f"{__name__}:Keep"
        assert recorded(tmp_path / place)["search"]["strategy"] == f"{__name__}:Keep"


def test_objects_live_as_long_as_the_config_that_names_them() -> None:
    backend = ScriptedBackend(one_step)
    alive = weakref.ref(backend)
    searcher = palmette.Searcher(backend, None, width=1)
    searcher.search("1")
    config = searcher.config
    searcher.close()
    del backend, searcher
    gc.collect()
    wider = palmette.Searcher(config=config, width=2)
    del config
    assert len(wider.search("1").leaves) == 2
    wider.close()
    del wider
    gc.collect()
    assert alive() is None


def settings_of(searcher: palmette.Searcher) -> dict[str, Any]:
    values: dict[str, Any] = searcher.config.model_dump(mode="json")
    return values


@pytest.mark.parametrize(
    ("base", "over"),
    [
        ({"policy": f"{__name__}:one_step"}, {"policy": "seedling"}),
        ({"policy": "seedling"}, {"policy": "some/model"}),
        ({"reward": f"{__name__}:half"}, {"reward": "seedling-ripe"}),
        ({"reward": f"{__name__}:half"}, {"reward": None}),
        ({"reward": "some/prm"}, {"reward": "seedling-ripe"}),
        ({"strategy": "ets", "kv_budget": "1GiB"}, {"kv_budget": None}),
        ({"strategy": "ets", "kv_budget": "1GiB"}, {"strategy": "best_of_n", "kv_budget": None}),
        ({"strategy": Keep}, {"strategy": "rebase"}),
        ({}, {}),
    ],
)
def test_settings_over_a_config_are_the_same_as_given_together(base: dict[str, Any], over: dict[str, Any]) -> None:
    together = settings_of(palmette.Searcher(**{**base, **over}))
    laid_over = settings_of(palmette.Searcher(**over, config=palmette.Searcher(**base).config))
    together["search"].pop("keep", None)
    laid_over["search"].pop("keep", None)
    assert laid_over == together


def test_what_a_config_was_told_stays_under_other_settings() -> None:
    told = palmette.Searcher("seedling", "seedling-ripe", "ets", lambda_kv=2.0, settings={"reward.score": "likelihood"})
    config = palmette.Searcher("some/model", strategy="rebase", config=told.config).config
    assert (config.reward.model, config.reward.score, config.search.options["lambda_kv"]) == (
        "seedling-ripe", "likelihood", 2.0,
    )  # fmt: skip
    assert palmette.Searcher(config=Config()).config == palmette.Searcher().config
    assert palmette.Searcher(strategy="rebase", config=Config()).config == palmette.Searcher(strategy="rebase").config


def test_what_is_no_setting_no_text_and_no_folder_is_told() -> None:
    config = palmette.Searcher(seed=3).config
    for wrong, said in (
        ({"config": config, "settings": {"seed.x": 1}}, "cannot set 'seed.x': 'seed' holds a value, not a table"),
        ({"settings": [1]}, "settings: give a table"),
        ({"settings": {1: 2}}, "settings: give a table"),
        ({"config": {}}, "config: give the path of a YAML file or a Config, not a dict"),
    ):
        with pytest.raises(palmette.ConfigError, match=re.escape(said)):
            palmette.Searcher(**wrong)
    for solution, reference in ((None, "1"), ("1", None), (1, "1")):
        with pytest.raises(palmette.ConfigError, match="is a text, not a"):
            palmette.grade(solution, reference)  # type: ignore[arg-type]
    with pytest.raises(palmette.ConfigError, match="a NoneType is no folder of a run"):
        palmette.Searcher.of_run(None)  # type: ignore[arg-type]
    with pytest.raises(palmette.ConfigError, match="server 'foo': choose sglang or vllm"):
        palmette.plan(server="foo", devices="cpu:8GiB")


def test_a_searcher_that_cannot_load_leaves_no_thread() -> None:
    before = threading.active_count()
    searcher = palmette.Searcher(f"{__name__}:half", None)
    with pytest.raises(palmette.ConfigError, match="is no backend"), searcher:
        pass
    with pytest.raises(palmette.ConfigError, match="is no backend"):
        searcher.search("1")
    assert threading.active_count() == before


def test_parts_that_were_given_are_used_again_after_close() -> None:
    parts = Parts(ScriptedBackend(one_step), None)
    searcher = palmette.Searcher(parts=parts, width=1)
    for _ in range(2):
        assert searcher.search("1").answer == "5"
        searcher.close()


def test_a_strategy_given_as_an_object_sees_the_width_of_the_run() -> None:
    seen: list[tuple[int, int]] = []

    class Spy(Keep):
        def allocate(self, frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
            seen.append((self.width, self.first_step_tokens))
            return super().allocate(frontier, width, room)

    spy = Spy()
    narrow, wide = (palmette.Searcher(ScriptedBackend(one_step), None, spy, width=width) for width in (2, 5))
    assert narrow.config.search.build_strategy().width == 2
    wide.search("1")
    narrow.search("1")
    assert seen == [(5, 32), (2, 32)]


def test_a_relative_path_is_resumed_as_the_absolute_one_it_was_recorded_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vectors").mkdir()
    settings: dict[str, Any] = {"embedder": "vectors", "width": 1, "questions_in_flight": 1}
    begin(tmp_path / "run", palmette.Searcher(ScriptedBackend(one_step), None, **settings))
    assert recorded(tmp_path / "run")["embedder"]["model"] == str(tmp_path / "vectors")
    again = palmette.Searcher(ScriptedBackend(one_step), None, **settings)
    assert len(list(again.resume(tmp_path / "run", ["1", "2", "3"]))) == 2


class Shade(Enum):
    DARK = "dark"
    LIGHT = "light"


class Rich(Keep):
    """Settings that JSON writes as something else."""

    class Settings(palmette.StrategySettings):
        """Two of them have no default."""

        sizes: tuple[int, ...]
        where: Path = Field(Path("here"), description="a folder")
        shade: Shade = Shade.DARK
        names: frozenset[str] = Field(default_factory=frozenset)
        weights: dict[int, float] = Field(default_factory=lambda: {1: 0.5})


def test_settings_that_json_changes_reach_the_strategy_as_they_were_declared(tmp_path: Path) -> None:
    given: dict[str, Any] = {"sizes": (1, 2), "where": Path("x/y"), "shade": Shade.LIGHT, "names": {"a"}}
    searcher = palmette.Searcher(ScriptedBackend(one_step), None, Rich, width=1, **given)
    assert vars(searcher.config.search.build_strategy().settings) == {**given, "weights": {1: 0.5}}
    searcher.search("1", out=tmp_path / "run")
    read = palmette.Searcher.of_run(tmp_path / "run").config.search.build_strategy().settings
    assert vars(read) == {**given, "weights": {1: 0.5}}
    by_flags = dict(map(parse_override, ("search.sizes=[3, 4]", "search.names=[b]", "search.shade=light")))
    written = load_config(None, {"search.strategy": f"{__name__}:Rich", **by_flags}).search.build_strategy().settings
    assert (written.sizes, written.names, written.shade) == ((3, 4), {"b"}, Shade.LIGHT)
    assert parse_override("task.prompt={question}") == ("task.prompt", "{question}")


def test_settings_that_cannot_be_are_told_in_words() -> None:
    with pytest.raises(palmette.ConfigError, match="^config: search.sizes is not set, and has no default$"):
        palmette.Searcher(strategy=Rich)
    with pytest.raises(palmette.ConfigError, match="arguments: search.sizes.0 cannot be 'a': input should be"):
        palmette.Searcher(strategy=Rich, sizes=["a"])
    with pytest.raises(palmette.ConfigError, match="settings of strategy .*Rich cannot be recorded: .*function"):
        palmette.Searcher(strategy=Rich, sizes=half)

    class Deep(Keep):
        class Settings(palmette.StrategySettings):
            depth: int = 3

    with pytest.raises(palmette.ConfigError, match="declares 'depth', which is a key of every search: rename it"):
        palmette.Searcher(strategy=Deep)

    class Endless(Keep):
        class Settings(palmette.StrategySettings):
            most: float = float("inf")

    with pytest.raises(palmette.ConfigError, match="search.most cannot be inf: input should be a finite number"):
        palmette.Searcher(strategy=Endless)


def test_a_required_setting_of_another_strategy_of_a_sweep_is_asked_of_that_one_alone() -> None:
    rich = f"{__name__}:Rich"
    base = load_config(None, {"search.strategy": "ets", "search.names": ["a"]}, strategies=[rich, "ets"])
    assert base.search.options["names"] == ["a"]
    with pytest.raises(palmette.ConfigError, match="search.sizes is not set"):
        Sweep(Path(), base, (cell := Cell(rich, 2, 0),)).config(cell)


def test_settings_of_all_kinds_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "listings", lambda kind: [registry.Listing(kind, f"{__name__}:Rich", "mine")])
    plugins("strategy", as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert {key: value["default"] for key, value in row["settings"].items()} == {
        "sizes": None, "where": "here", "shade": "dark", "names": [], "weights": {"1": 0.5},
    }  # fmt: skip
    assert [key for key, value in row["settings"].items() if value["required"]] == ["sizes"]
    plugins("strategy")
    told = " ".join(capsys.readouterr().out.split())
    assert "sizes, required" in told and "where = here: a folder" in told


def test_a_run_of_a_strategy_that_cannot_be_imported_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with palmette.Searcher(ScriptedBackend(one_step), None, Keep(), width=1) as searcher:
        searcher.search({"question": "1", "answer": "5"}, out=tmp_path / "run")
    evaluate(tmp_path / "run", as_json=True)
    assert json.loads(capsys.readouterr().out)["prod"]["best"]["outcomes"] == {"correct": 1}
