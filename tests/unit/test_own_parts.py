"""Names that packages declare: used wherever a model is named, listed, and told of in plans."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from palmette import registry
from palmette.config import load_config
from palmette.errors import ConfigError
from palmette.report.memory_plan import plan_config

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Returns who lays a package out as pip does: a module, and what it declares as entry points."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def laid_out(module: str, source: str, **declared: str) -> Path:
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        about = site / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        groups = "".join(f"[palmette.{group}]\n{line}\n" for group, line in declared.items())
        (about / "entry_points.txt").write_text(groups, encoding="utf-8")
        return site

    return laid_out


def test_a_name_is_ones_own_where_a_package_declares_it_or_it_is_a_reference(install: Install) -> None:
    install("orchard", "def mine(step): return 1.0\n", scorers="pear = orchard:mine\nhead = orchard:mine")
    assert registry.is_own("scorer", "pear")
    assert registry.is_own("scorer", "anything.at:all")
    assert not registry.is_own("backend", "pear")
    assert not registry.is_own("scorer", "head")  # Built in: nobody takes its place.
    assert not registry.is_own("scorer", "seedling-ripe")
    assert registry.find("scorer", "pear")(step="") == 1.0


def test_a_package_that_is_installed_later_is_found(install: Install) -> None:
    install("first_tree", "part = None\n", embedders="first = first_tree:part")
    assert [listing.name for listing in registry.listings("embedder")] == ["first"]
    site = install("second_tree", "part = None\n", embedders="second = second_tree:part")
    os.utime(site, ns=(0, site.stat().st_mtime_ns + 1))  # Two changes within one tick of the clock look like one.
    assert [(found.name, found.source) for found in registry.listings("embedder")] == [
        ("first", "first_tree"),
        ("second", "second_tree"),
    ]


def test_a_backend_and_a_scorer_are_named_where_a_model_is(install: Install) -> None:
    install("orchard2", "class Pear: ...\n", scorers="pear = orchard2:Pear", backends="plum = orchard2:Pear")
    config = load_config(None, {"policy.model": "plum", "reward.model": "pear"})
    assert (config.policy.backend, config.reward.model, config.reward.score) == ("plum", None, "pear")
    assert config.has_scores()


@pytest.mark.parametrize("kind", ["task", "judge", "scorer", "backend"])
def test_built_in_parts_are_described_without_being_imported(kind: str) -> None:
    for name in registry.built_ins(kind):
        assert registry.first_line(kind, name).endswith(".")
    code = "import sys; from palmette import registry; registry.first_line('backend', 'local'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded and "palmette.backends.local" not in loaded


def test_a_plan_says_which_parts_it_does_not_count() -> None:
    own = {"search.strategy": "ets", "reward.model": "some.where:scorer", "embedder.model": "some.where:embedder"}
    plan = plan_config(load_config(None, {**own, "memory.devices": "cpu:8GiB", "search.width": 4}))
    told = [remark for remark in plan.plan.remarks if "not counted" in remark]
    assert told == [
        "the scorer some.where:scorer is your own code: what it holds is not counted",
        "the embedder some.where:embedder is your own code: what it holds is not counted",
    ]
    assert "no-embedder" not in {rule.id for rule in plan.plan.rules}
    holders = {line.holder for device in plan.devices for phase in device.phases for line in phase.lines}
    assert "policy weights" in holders and not [name for name in holders if name.startswith(("reward", "embedder"))]
    assert repr(plan).startswith("MemoryPlan(fits=True, peaks: cpu ")


def test_a_plan_of_a_backend_of_ones_own_asks_for_the_model_it_runs() -> None:
    with pytest.raises(ConfigError, match="policy.model some.where:Backend is a backend of your own"):
        plan_config(load_config(None, {"policy.model": "some.where:Backend"}))


def test_listing_shows_what_packages_say_as_it_is(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    from palmette.commands.plugins import plugins

    source = 'def odd(texts):\n    """Squares [/brackets] and all."""\n'
    install("orchard3", source, embedders="odd = orchard3:odd", judges="gone = orchard3:gone")
    plugins("embedder")
    assert "Squares [/brackets] and all." in capsys.readouterr().out
    plugins("judge")  # What cannot be imported is told, and the rest is listed.
    told = " ".join(capsys.readouterr().out.split())
    assert "gone" in told and "cannot be imported" in told and "math-verify" in told


def test_a_package_that_ends_the_process_when_it_is_imported_is_told_and_the_rest_listed(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    from palmette.commands.plugins import plugins

    install("orchard4", "import sys; sys.exit(3)\n", judges="leaves = orchard4:judge")
    with pytest.raises(ConfigError, match="judge leaves cannot be imported: SystemExit: 3"):
        registry.find("judge", "leaves")
    plugins("judge")
    assert "math-verify" in capsys.readouterr().out


def test_an_installed_part_does_not_take_the_place_of_a_model_of_the_zoo(install: Install) -> None:
    from palmette.zoo.catalog import ENTRIES

    assert set(registry.MODEL_NAMES) == set(ENTRIES)
    install(
        "orchard5", "class Pear: ...\n", backends="seedling = orchard5:Pear", scorers="seedling-ripe = orchard5:Pear",
        embedders="minilm = orchard5:Pear",
    )  # fmt: skip
    config = load_config(None, {"policy.model": "seedling", "reward.model": "seedling-ripe"})
    assert (config.policy.backend, config.reward.model, config.reward.score) == ("local", "seedling-ripe", "likelihood")
    assert not registry.is_own("embedder", "minilm")
