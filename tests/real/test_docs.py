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


def printed_by(page: str) -> dict[str, str]:
    """Run the Python blocks of a page in one namespace; return what each `print` printed, by what the page says of it.

    The page says it in a comment behind the call.
    """
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    printed: dict[str, str] = {}

    def show(*values: object) -> None:
        said = lines[sys._getframe(1).f_lineno - 1].partition("  # ")[2]
        text = " ".join(map(str, values))
        assert printed.setdefault(said, text) == text, said

    exec(compile(python_script(page), page, "exec"), {"print": show, "__name__": "page"})
    return printed


def test_the_blocks_of_the_api_page_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = printed_by("docs/api.md")
    assert "policy weights" in printed.pop("a table for each device")
    assert printed == {said: said for said in printed}
    assert len(printed) >= 18
    assert (tmp_path / "runs" / "mine" / "events.jsonl").is_file()


def test_the_blocks_of_the_page_about_words_print_what_they_say() -> None:
    printed = printed_by("docs/words.md")
    assert printed == {said: said for said in printed}
    assert len(printed) == 6


def test_reward_functions_of_other_libraries_judge_as_the_page_wraps_them() -> None:
    assert printed_by("docs/coming-from.md") == {"[1.0, 1.0, 1.0, 1.0]": "[1.0, 1.0, 1.0, 1.0]"}


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


def test_the_same_versions_of_python_are_declared_tested_and_written_down() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    said = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Versions of Python")[2]
    assert re.findall(r"3\.\d+", said) == declared
