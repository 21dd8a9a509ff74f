from pathlib import Path

import pytest

from palmette import registry
from palmette.commands import report
from palmette.config import load_config
from palmette.errors import ConfigError, RunError
from palmette.run.sweep import Cell, new_sweep, open_sweep
from palmette.settings import Config
from palmette.strategy import Children, Frontier, Strategy, StrategySettings


def config(folder: Path) -> Config:
    return Config.model_validate({"out": str(folder)})


def test_best_of_n_joins_at_the_largest_width_for_each_seed(tmp_path: Path) -> None:
    sweep = new_sweep(config(tmp_path / "s"), ["beam"], [2, 8], [0, 1])
    assert sweep.cells[4:] == (Cell("best_of_n", 8, 0), Cell("best_of_n", 8, 1))
    assert open_sweep(tmp_path / "s").cells == sweep.cells  # a resume runs it too


def test_a_sweep_that_has_best_of_n_gets_no_more_of_it(tmp_path: Path) -> None:
    sweep = new_sweep(config(tmp_path / "s"), ["best_of_n", "beam"], [2, 8], [0])
    assert len(sweep.cells) == 4


def test_a_sweep_without_runs_says_how_to_begin(tmp_path: Path) -> None:
    new_sweep(config(tmp_path / "s"), ["beam"], [2], [0])
    with pytest.raises(RunError, match="no run was begun; begin with: palmette sweep --resume"):
        report.report([tmp_path / "s"], None)


class Half(Strategy):
    """Keep a part of the leaves."""

    class Settings(StrategySettings):
        part: float = 0.5

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        return {frontier.leaves[0]: width}


def test_a_sweep_gives_each_strategy_its_own_settings(tmp_path: Path) -> None:
    half = registry.add("strategy", Half).name
    overrides = {"search.part": 0.25, "search.lambda_kv": 2.0, "search.strategy": "ets", "out": str(tmp_path / "s")}
    with pytest.raises(ConfigError, match="unknown key 'search.part'"):
        load_config(None, overrides)
    base = load_config(None, overrides, strategies=[half, "ets"])
    sweep = open_sweep(new_sweep(base, [half, "ets"], [4], [0]).folder)
    by_strategy = {cell.strategy: sweep.config(cell).search.build_strategy().settings for cell in sweep.cells}
    assert by_strategy[half].part == 0.25
    assert by_strategy["ets"].lambda_kv == 2.0
    assert set(by_strategy) == {half, "ets", "best_of_n"}
