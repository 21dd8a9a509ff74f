"""Practices: each has all that a practice needs, its check catches what breaks it and passes what keeps it."""

import re
from functools import cache
from pathlib import Path

import pytest

from palmette.agents.checks.find import CHECKS, check, check_all
from palmette.agents.subject import Subject, of_example, parsed_command
from palmette.config import known_keys
from palmette.errors import ConfigError
from palmette.practices.find import page, practice, practices
from tests.practices_page import listed, written

pytestmark = pytest.mark.unit
_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("id", practices())
def test_its_check_catches_what_breaks_the_practice(id: str) -> None:
    found = check(practice(id), of_example(practice(id).breaks))
    assert found is not None and not found.kept and found.said


@pytest.mark.parametrize("id", practices())
def test_its_check_passes_what_keeps_the_practice(id: str) -> None:
    found = check(practice(id), of_example(practice(id).keeps))
    assert found is not None and found.kept and found.setting is None


@cache
def _given_settings() -> dict[str, tuple[str, str]]:
    """Return the settings that checks give for configs that break their practice, by the practice's id."""
    found = {id: check(one, of_example(one.breaks)) for id, one in practices().items() if one.breaks.config is not None}
    told = {id: (verdict.setting or "").partition(" ") for id, verdict in found.items() if verdict is not None}
    return {id: (key, value) for id, (key, _, value) in told.items() if key in known_keys()}


@pytest.mark.parametrize("id", _given_settings())
def test_the_setting_that_a_check_gives_keeps_the_practice(id: str) -> None:
    example = practice(id).breaks
    assert example.config is not None
    key, value = _given_settings()[id]
    mended = example.model_copy(update={"config": {**example.config, key: _typed(value)}})
    after = check(practice(id), of_example(mended))
    assert after is not None and after.kept


def test_most_checks_of_configs_give_a_setting() -> None:
    assert len(_given_settings()) >= 15


def _typed(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return {"true": True, "false": False, "off": 1.0}.get(value, value)


def test_there_are_at_least_25_and_every_check_is_used() -> None:
    assert len(practices()) >= 25
    assert {found.check.name for found in practices().values()} == set(CHECKS)


@pytest.mark.parametrize("id", practices())
def test_the_command_that_measures_it_exists(id: str) -> None:
    command = practice(id).measured.command
    assert re.search(r"\d", practice(id).measured.number)
    if module := re.search(r"-m (benchmarks\.\w+)", command):
        assert (_ROOT / f"{module[1].replace('.', '/')}.py").is_file()
    elif file := re.search(r"pytest (\S+)", command):
        assert (_ROOT / file[1]).is_file()
    elif target := re.search(r"make (\S+)", command):
        assert f"\n{target[1]}:" in (_ROOT / "Makefile").read_text(encoding="utf-8")
    else:
        assert command.startswith("palmette ")


def test_nothing_is_said_about_an_empty_subject() -> None:
    assert list(check_all(Subject())) == []


def test_a_practice_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'plan-first'"):
        practice("plan-frist")


def test_a_page_has_rule_number_command_and_source() -> None:
    for found in practices().values():
        text = page(found)
        assert all(part in text for part in (found.rule, found.measured.number, found.measured.command, found.source))


def test_the_page_has_all_practices() -> None:
    assert listed() == written(), "python -m tests.practices_page writes the practices anew"


def test_a_command_is_read_with_its_variables_and_flags_and_nothing_is_expanded() -> None:
    found = parsed_command("A=1 vllm serve $(touch x) --max_model_len=8 --enforce-eager --port 80")
    assert found.environment == {"A": "1"} and found.server == "vllm" and "$(touch" in found.words
    assert found.flags == {"max-model-len": "8", "enforce-eager": "", "port": "80"}
    assert parsed_command('vllm serve "unclosed').words == ("vllm", "serve", '"unclosed')
