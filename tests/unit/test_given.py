"""What is given from Python: the same run with and without a folder, under names that say where a part came from."""

from pathlib import Path
from typing import Any

import pytest

import palmette
from palmette.backends.backend import Expansion
from palmette.backends.scripted import ScriptedBackend
from palmette.commands.search import search
from palmette.event_log import read_events
from palmette.events import RunStarted


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
