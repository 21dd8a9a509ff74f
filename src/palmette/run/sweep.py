"""Strategies x widths x seeds over one task, each cell a run of its own."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from palmette.config import check_config, recorded_config
from palmette.errors import ConfigError, RunError
from palmette.run.folder import anchored, new_folder
from palmette.run.parts import Parts, build_parts, check_questions
from palmette.run.search import Listener, make_meter, search_into
from palmette.settings import Config
from palmette.tasks.load import load_task
from palmette.tasks.task import Task

PLAN = "sweep.json"
MEASURE = "best_of_n"
LONGEST_NAME = 255
"""Bytes that the name of a folder may have."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    strategy: str
    width: int
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        return f"{self.strategy.replace(':', '.')}-{self.width}-seed{self.seed}"


@dataclass(frozen=True)
class Sweep:
    """What a sweep was told: a base config, and the cells that differ from it."""

    folder: Path
    base: Config
    cells: tuple[Cell, ...]

    @property
    def strategies(self) -> list[str]:
        """The strategies of all cells: the base may hold settings of each."""
        return list(dict.fromkeys(cell.strategy for cell in self.cells))

    def folders(self) -> list[Path]:
        """Return the folders of the cells that were begun."""
        return [path for cell in self.cells if (path := self.folder / cell.name).is_dir()]

    def config(self, cell: Cell) -> Config:
        """Return a cell's config; raise ConfigError where its strategy or width is none."""
        values = self.base.model_dump(mode="json")
        values["seed"] = cell.seed
        values["out"] = str(self.folder / cell.name)
        values["search"] |= {"strategy": cell.strategy, "width": cell.width}
        budget = values["search"].pop("kv_budget")
        config = check_config(values, {}, cell.name, strategies=self.strategies)
        if budget is None or "room" not in config.search.build_strategy().uses:
            return config  # Strategies that cannot keep a budget show what it costs not to.
        values["search"]["kv_budget"] = budget
        return check_config(values, {}, cell.name, strategies=self.strategies)


def new_sweep(base: Config, strategies: Sequence[str], widths: Sequence[int], seeds: Sequence[int]) -> Sweep:
    """Make a sweep's folder and write down what it will do, after every cell's config has been checked."""
    base.scale.refuse_for("sweep")
    cells = tuple(Cell(*parts) for parts in (*product(strategies, widths, seeds), *measure(strategies, widths, seeds)))
    if len(set(cells)) < len(cells):
        raise ConfigError("a sweep has each strategy, width and seed once: one of them was given twice")
    for cell in cells:
        Sweep(Path(), base, cells).config(cell)
    sweep = Sweep(new_folder(base, "sweep"), anchored(base, strategies), cells)
    plan = {"base": sweep.base.model_dump(mode="json"), "cells": [vars(cell) for cell in cells]}
    try:
        with (sweep.folder / PLAN).open("x", encoding="utf-8") as file:
            file.write(json.dumps(plan, indent=1) + "\n")
    except FileExistsError:
        raise ConfigError(f"out: {sweep.folder} was taken by another sweep just now. Choose a new folder") from None
    except OSError as error:
        raise ConfigError(f"out: cannot write {sweep.folder / PLAN}: {error.strerror}") from error
    return sweep


def measure(strategies: Sequence[str], widths: Sequence[int], seeds: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield best_of_n at the largest width where it is not asked for: every strategy is measured against it."""
    if MEASURE not in strategies:
        yield from product((MEASURE,), (max(widths),), seeds)


def open_sweep(folder: Path) -> Sweep:
    """Return a sweep that was begun before."""
    path = folder / PLAN
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(Cell(str(cell["strategy"]), int(cell["width"]), int(cell["seed"])) for cell in plan["cells"])
        base = plan["base"]
        if any("/" in cell.strategy or cell.strategy.startswith(".") for cell in cells):
            raise ValueError("a cell names no strategy")
        if any(len(os.fsencode(cell.name)) > LONGEST_NAME for cell in cells):
            raise ValueError("a cell has a name that no folder can have")
    except OSError as error:
        raise RunError(f"{folder} is no sweep: cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RunError(f"{path}: damaged: {type(error).__name__}: {error}") from None
    return Sweep(folder, recorded_config(base, str(path), imports=False), cells)


def run_sweep(sweep: Sweep, listener_of: Callable[[Cell], Listener]) -> None:
    """Run every cell that is not finished; the models are loaded once for all of them."""
    try:
        task, parts = _shared(sweep)
    except BaseException:
        if not sweep.folders():  # Nothing begun, nothing lost: the same command can be given once more.
            with suppress(OSError):
                (sweep.folder / PLAN).unlink()
                sweep.folder.rmdir()
        raise
    for cell in sweep.cells:
        config = sweep.config(cell)
        folder = sweep.folder / cell.name
        folder.mkdir(exist_ok=True)
        with make_meter(config) as meter:
            for _ in search_into(folder, config, parts, task, meter, listener=listener_of(cell)):
                pass


def _shared(sweep: Sweep) -> tuple[Task, Parts]:
    """Load what all cells share. The cache has no limit of its own: a budget is for some of the cells."""
    clusters = any("clusters" in sweep.config(cell).search.build_strategy().uses for cell in sweep.cells)
    task = load_task(sweep.base.task)
    search = sweep.base.search.model_copy(update={"kv_budget": None})
    parts = build_parts(sweep.base.model_copy(update={"search": search}), clusters=clusters)
    for cell in sweep.cells:
        check_questions(sweep.config(cell), task, parts.backend, parts.scorer)
    return task, parts
