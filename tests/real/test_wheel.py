"""The wheel is all that a search needs: installed where nothing of the repository is, with the shipped models."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pages import ROOT

MODELS = {"seedling", "seedling-ripe", "seedling-prm", "seedling-words", "seedling-words-prm"}
ADAPTERS = {"sapling", "sapling-prm"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel that is built from it, as `make build` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment with the wheel in it, and beside it what it depends on.

    The packages of this environment are put on its path, but not what .pth files add to it, such as this repository.
    """
    place = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], capture_output=True, check=True)
    (site,) = place.glob("lib/python*/site-packages")
    places = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("\n".join(places) + "\n", encoding="utf-8")
    return python


def run(program: Path, cwd: Path, arguments: Sequence[str]) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_code_weights_and_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "src/palmette"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in names if not name.startswith("palmette-")} == {
        name.removeprefix("src/") for name in tracked
    }
    for needed in (
        "palmette/py.typed",
        "palmette/tasks/formats.yaml",
        "palmette/planner/models/defaults.json",
        "palmette/planner/models/known.json",
        "palmette/report/page.html",
        "palmette/report/page.css",
        "palmette/report/page.js",
        *(f"palmette/zoo/{model}/model.safetensors" for model in MODELS),
        *(f"palmette/zoo/{model}/adapter_model.safetensors" for model in ADAPTERS),
    ):
        assert needed in names


def test_the_sdist_holds_what_make_needs(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {
        "Makefile",
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "constraints.txt",
        "mkdocs.yml",
        "examples/search.py",
    }
    assert needed <= names
    assert "tests/pages.py" in names and "docs/api.md" in names and "recipes/seedling/__main__.py" in names


def test_palmette_comes_from_the_wheel_and_the_repository_is_out_of_reach(python: Path, tmp_path: Path) -> None:
    code = "import json, sys, palmette; print(json.dumps([palmette.__file__, sys.path]))"
    file, path = json.loads(run(python, tmp_path, ["-c", code]))
    assert Path(file).is_relative_to(python.parents[1])
    assert not [place for place in path if Path(place).resolve().is_relative_to(ROOT / "src")]
    code = "import importlib.util as u; print([u.find_spec(name) for name in ('tests', 'recipes', 'benchmarks')])"
    assert run(python, tmp_path, ["-c", code]).strip() == "[None, None, None]"


def test_the_command_is_installed_and_lists_the_shipped_models(python: Path, tmp_path: Path) -> None:
    listed = json.loads(run(python.with_name("palmette"), tmp_path, ["models", "--json"]))
    shipped = {card["name"] for card in listed if card["source"] == "palmette" and card["present"]}
    assert shipped == MODELS | ADAPTERS


def test_a_search_with_the_shipped_models_leaves_a_report(python: Path, tmp_path: Path) -> None:
    asked = ["search", "--strategy", "rebase", "--width", "4", "--questions", "2", "--out", "run", "--json"]
    values = json.loads(run(python.with_name("palmette"), tmp_path, asked))
    assert values["results"]["questions"] == 2
    assert values["cost"]["reward_calls"] > 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
