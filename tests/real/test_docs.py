"""What the pages of docs/ show is run; the site is built of them without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import palmette
from tests.pages import ROOT, python_script

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_blocks_of_the_api_page_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: dict[int, str] = {}

    def show(*values: object) -> None:
        line = sys._getframe(1).f_lineno
        printed[line] = " ".join(map(str, values))

    monkeypatch.chdir(tmp_path)
    exec(compile(python_script("docs/api.md"), "docs/api.md", "exec"), {"print": show, "__name__": "page"})
    shown = API.splitlines()
    told = {line: shown[line - 1].partition("  # ")[2] for line in printed}
    table = next(line for line in told if told[line] == "a table for each device")
    assert "policy weights" in printed.pop(table)
    assert printed == {line: text for line, text in told.items() if line != table}
    assert len(printed) > 20
    assert (tmp_path / "runs" / "mine" / "events.jsonl").is_file()


def test_the_api_page_names_everything_that_is_public() -> None:
    named = set(re.findall(r"`(\w+)`", API))
    assert set(palmette.__all__) <= named


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in palmette.__all__:
        assert getattr(palmette, name).__doc__, name


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {page.parent.name for page in pages} >= written - {"index"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="(https?:[^"]+)"', text)
        assert [url for url in fetched if "canonical" not in url] == [], page
    reference = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    for name in ("palmette.api.Searcher", "palmette.strategy.Strategy", "palmette.search.result.SearchResult"):
        assert f'id="{name}"' in reference


def test_every_page_stands_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}
