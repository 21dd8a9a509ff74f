from pathlib import Path

import pytest

from palmette.commands import report
from palmette.errors import RunError
from palmette.run.sweep import Cell, new_sweep, open_sweep
from palmette.settings import Config


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
