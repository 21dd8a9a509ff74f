"""The page of training runs in a real browser: model text is inert, the slider of updates moves everything."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from palmette.event_log import EventLog
from palmette.events import (
    Evaluated,
    MemoryTimeline,
    Noticed,
    PhasePeak,
    RunStarted,
    ShownSample,
    ShownStep,
    ShownTree,
    UpdateDone,
)
from palmette.report.training.page import write_training_page
from palmette.settings import Config
from tests.browser import COLORS, focus, shown, text

pytestmark = pytest.mark.browser

SCRIPT = "<script>window.pwned=1</script>"
BREAKOUT = "</script><img src=x onerror=window.pwned=2><svg onload=window.pwned=3>"
WIDE = "w" * 400
PROMPT = f"{SCRIPT} {BREAKOUT} {WIDE} {{{{script}}}}"
SIZES = [(1280, 900), (390, 844)]
UPDATES = 30


def update(number: int) -> UpdateDone:
    numbers = {
        "reward": number / 100, "entropy": 0.5, "ratio": 1.0, "ratio_low": 0.9999, "ratio_high": 1.0001,
        "learning_rate": 1e-6, "generated_tokens": 1000.0, "signal_share": 0.5, BREAKOUT: 2.0, "loss": 0.0,
    }  # fmt: skip
    samples = (
        ShownSample(SCRIPT, PROMPT, f"{BREAKOUT} update {number}", 1.0, 0.25, False, {"judge": 1.0, SCRIPT: 0.5}),
        ShownSample(SCRIPT, PROMPT, WIDE, None, None, True, {"judge": None, SCRIPT: None}),
    )
    seconds, peaks = {"rollout": 2.0, SCRIPT: 1.0}, {"rollout": 2**20, SCRIPT: 2**21}
    steps = (
        ShownStep(0, f"{BREAKOUT} step {number}", 5, "kept", 0.5, 0.125, None),
        ShownStep(0, WIDE, 5, "pruned", None, None, None),
        ShownStep(1, SCRIPT, 5, "finished", 1.0, 0.5, 1.0),
        ShownStep(1, "cut", 5, "stopped", 0.0, -0.5, 0.0),
    )
    tree = ShownTree(SCRIPT, steps, 3)
    return UpdateDone(number, number, numbers, seconds, peaks, samples, (tree,))


def write_run(folder: Path, algorithm: str, updates: int) -> Path:
    folder.mkdir()
    told = {"policy": {"model": BREAKOUT}, "train": {"algorithm": algorithm, "updates": updates}}
    with EventLog(folder) as log:
        log.write(RunStarted("0", Config.model_validate(told).model_dump(mode="json")))
        log.write(Evaluated(0, 50, 0.25, 0.375, 0.05, 1000, 1.0))
        for number in range(1, updates + 1):
            log.write(update(number))
        log.write(Evaluated(updates, 50, 0.5, 0.625, 0.05, 1000, 1.0))
        log.write(Noticed(3, SCRIPT, f"{BREAKOUT} was noticed"))
        peak = PhasePeak(BREAKOUT, 1, 1.0, 100, 120)
        log.write(MemoryTimeline("cpu", 1.0, 1000, (0.0, 1.0), (50, 100), (None, 0), (peak,)))
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    names = [("run-<img src=x onerror=window.pwned=6>", "grpo", UPDATES), ("short", "dapo", 10)]
    runs = [write_run(folder / name, algorithm, updates) for name, algorithm, updates in names]
    return write_training_page(runs, folder / "report.html")


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}px")
def page(browser: Browser, path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    with shown(browser, path, request.param) as page:
        yield page


def captions(page: Page) -> dict[str, str]:
    """The title of each curve with the value that stands beside it."""
    pairs = page.evaluate(
        '[...document.querySelectorAll("#curves figcaption")].map((one) => [...one.children].map((c) => c.textContent))'
    )
    return dict(pairs)


def test_hostile_text_is_shown_and_never_run(page: Page) -> None:
    page.evaluate('document.getElementById("more").open = true')
    page.evaluate('document.getElementById("settings").open = true')
    page.wait_for_selector("#others figure")
    assert PROMPT in text(page, "samples")
    assert f"{BREAKOUT} update {UPDATES}" in text(page, "samples")
    assert f"{BREAKOUT} was noticed" in text(page, "notices")
    assert BREAKOUT in text(page, "others")
    assert SCRIPT in text(page, "phase-table")
    assert "onerror=window.pwned=6" in text(page, "run")
    assert BREAKOUT in text(page, "about")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate('document.querySelectorAll("main script, img, svg[onload]").length') == 0


def test_the_page_itself_never_scrolls_sideways(page: Page) -> None:
    page.evaluate('document.getElementById("settings").open = true')
    page.evaluate('document.getElementById("more").open = true')
    page.wait_for_selector("#others figure")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_slider_of_updates_moves_numbers_samples_and_cursors(page: Page) -> None:
    assert text(page, "update-name") == f"Update {UPDATES} of {UPDATES}"
    assert captions(page)["reward"] == "0.3"
    assert captions(page)["test accuracy"] == "50.0% ± 5.0%"
    before = page.evaluate('document.querySelector("#curves svg > line:last-of-type").getAttribute("x1")')
    focus(page, "update")
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    assert text(page, "update-name") == f"Update 25 of {UPDATES}"
    assert page.evaluate('document.getElementById("update").getAttribute("aria-valuetext")') == "Update 25 of 30"
    assert captions(page)["reward"] == "0.25"
    assert captions(page)["test accuracy"] == "25.0% ± 5.0%"  # The last test up to then is the one before training.
    assert "update 25" in text(page, "samples") and f"update {UPDATES}" not in text(page, "samples")
    after = page.evaluate('document.querySelector("#curves svg > line:last-of-type").getAttribute("x1")')
    assert float(after) < float(before)
    page.keyboard.press("Home")
    assert captions(page)["reward"] == "0.01"


def test_each_response_has_its_reward_its_parts_and_its_advantage(page: Page) -> None:
    first, second = page.evaluate(
        '[...document.querySelectorAll(".answers li")].map((one) => one.querySelector("dl").innerText)'
    )
    assert " ".join(first.split()) == f"reward 1.000 advantage +0.250 judge 1.000 {SCRIPT} 0.500"
    assert (
        " ".join(second.split()) == f"reward none advantage not learned from judge none {SCRIPT} none cut at the limit"
    )


def test_the_tree_of_a_question_shows_each_step_with_its_value_and_its_advantage(page: Page) -> None:
    rows = page.evaluate(
        """[...document.querySelectorAll(".grown li")].map((row) => [
            row.querySelector("code").textContent, row.querySelector("dl").innerText.split(/\\s+/).join(" "),
            row.querySelector(".mark").className.trim(), row.querySelector(".guides").offsetWidth > 0])"""
    )
    assert rows == [
        [f"{BREAKOUT} step {UPDATES}", "value 0.500 advantage +0.125", "mark better", False],
        [SCRIPT, "reward 1.000 advantage +0.500", "mark better", True],
        ["cut", "reward 0.000 advantage -0.500 cut at the limit", "mark worse", True],
        [WIDE, "pruned", "mark", False],
    ]
    assert (
        page.evaluate('document.querySelector(".grown summary").textContent') == "Tree of 7 branches, the first 4 shown"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_runs_are_drawn_over_each_other_and_one_is_chosen(page: Page) -> None:
    strokes = page.evaluate(
        '[...document.querySelectorAll("#curves figure:first-child path")].map((path) => path.getAttribute("stroke"))'
    )
    assert set(strokes) == {"var(--c0)", "var(--c1)"}
    page.select_option("#run", "1")
    assert text(page, "update-name") == "Update 10 of 10"
    assert captions(page)["reward"] == "0.1"
    rows = page.evaluate('[...document.querySelectorAll("#table tbody tr")].map((row) => row.innerText)')
    assert "30 of 30" in rows[0] and "10 of 10" in rows[1]


def test_curves_can_be_drawn_against_tokens_and_seconds(page: Page) -> None:
    for against, last in (("tokens", "30k"), ("seconds", "80")):
        page.select_option("#against", against)
        marks = page.evaluate('[...document.querySelectorAll("#curves svg")][0].textContent')
        assert last in marks
    page.select_option("#against", "updates")


def test_a_click_on_a_curve_selects_the_update_below_it(page: Page) -> None:
    curve = page.locator("#curves svg").first
    curve.scroll_into_view_if_needed()
    curve.click(position={"x": 62, "y": 90})  # Near the left end of the axis.
    assert text(page, "update-name") == f"Update 1 of {UPDATES}"


def test_every_control_can_be_reached_with_a_visible_focus(page: Page) -> None:
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id")
        reached.add(name)
        if name in ("run", "against", "update"):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert {"table", "run", "against", "update", "phase-table"} <= reached


def test_a_run_without_an_update_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        log.write(Evaluated(0, 50, 0.25, 0.375, 0.05, 1000, 1.0))
    path = write_training_page([tmp_path], tmp_path / "report.html")
    with shown(browser, path, SIZES[0]) as page:
        assert text(page, "update-name") == "No update yet"
        assert captions(page) == {"test accuracy": "25.0% ± 5.0%"}
        assert text(page, "samples-note") == "No samples were recorded."


def test_dark_and_light_colors_both_reach_the_curves(page: Page) -> None:
    seen = set()
    for colors in COLORS:
        page.emulate_media(color_scheme=colors)
        seen.add(page.evaluate('getComputedStyle(document.querySelector("#curves path")).stroke'))
    assert len(seen) == 2
