"""The page in a real browser: nothing a model writes can run, and all of it can be reached by keyboard."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from palmette.event_log import EventLog
from palmette.events import (
    Chosen,
    NodeRecord,
    QuestionFinished,
    QuestionStarted,
    RunStarted,
    ServerUse,
    Session,
    WaveDone,
)
from palmette.report.compare import compare
from palmette.report.page import write_page
from palmette.score.judges.math import MathJudge
from palmette.search.rejudge import Rejudge
from palmette.settings import Config
from palmette.tasks.task import Question
from tests.browser import COLORS, focus, shown, text

pytestmark = pytest.mark.browser

SCRIPT = "<script>window.pwned=1</script>"
BREAKOUT = "</script><img src=x onerror=window.pwned=2><svg onload=window.pwned=3>"
WIDE = "w" * 400
PROMPT = f"{SCRIPT} {BREAKOUT} javascript:window.pwned=4 {WIDE} {{{{script}}}}"
ANSWER = "<b onmouseover=window.pwned=5>4</b>"
SIZES = [(1280, 900), (390, 844)]
SEEN = ("scrollWidth", "clientWidth")


def step(number: int, parent: int, text: str, score: float, *, finished: bool = False) -> NodeRecord:
    return NodeRecord(number, parent, (number,) * 4, text, (-0.1,) * 4, finished, score)


def write_run(folder: Path, strategy: str, width: int, servers: tuple[ServerUse, ...] = ()) -> Path:
    """Two waves: 1 and 2 live on, 3 is pruned; 4 and 5 finish below 1, 6 below 2."""
    folder.mkdir()
    search = {"strategy": strategy, "width": width}
    config = Config.model_validate({"search": search, "policy": {"model": BREAKOUT}, "reward": {"model": SCRIPT}})
    first = (step(1, 0, f"{SCRIPT}\n", 0.9), step(2, 0, f"{BREAKOUT}\n", 0.8), step(3, 0, f"{WIDE}\n", 0.1))
    last = (
        step(4, 1, f"\\boxed{{{ANSWER}}}", 0.9, finished=True),
        step(5, 1, "= 4", 0.7, finished=True),
        step(6, 2, "= 4", 0.9, finished=True),
    )
    chosen = {"best": Chosen(ANSWER, "wrong"), "majority": Chosen("4", "correct"), "weighted": Chosen("4", "correct")}
    with EventLog(folder) as log:
        log.write(RunStarted("0", config.model_dump(mode="json")))
        for question in ("a", "b"):
            log.write(QuestionStarted(question, PROMPT, "4", 10, "d"))
            log.write(WaveDone(question, 0, first, {1: 2, 2: 1}, 22, 42, {1: 0, 2: 1, 3: 0}))
            log.write(WaveDone(question, 1, last, {}, 30, 54))
            log.write(QuestionFinished(question, chosen, {"correct": 2, "wrong": 1}, 24, 26.0, 30, 54, 2))
        log.write(Session(1.0, 2, 2, 2, 64, servers=servers))
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    names = [("rebase-<img src=x onerror=window.pwned=6>", "rebase", 3), ("bon", "best_of_n", 3)]
    runs = [write_run(folder / name, strategy, width) for name, strategy, width in names]
    asked = [Question(name, ({"role": "user", "content": "2+2"},), "4") for name in "ab"]
    return write_page(compare(runs, lambda config: Rejudge(MathJudge(3600), asked)), folder / "report.html")


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}px")
def page(browser: Browser, path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    with shown(browser, path, request.param) as page:
        yield page


def test_hostile_text_is_shown_and_never_run(page: Page) -> None:
    assert text(page, "prompt") == PROMPT
    focus(page, "view")
    for key, told in [("Home", PROMPT), ("ArrowRight", SCRIPT), ("ArrowDown", BREAKOUT)]:
        page.keyboard.press(key)
        assert told in text(page, "path")
    assert ANSWER in text(page, "votes")
    assert "onerror=window.pwned=6" in text(page, "run")
    assert BREAKOUT in text(page, "settings")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate('document.querySelectorAll("main script, img, svg[onload], b").length') == 0


def test_the_page_itself_never_scrolls_sideways(page: Page) -> None:
    focus(page, "view")
    page.evaluate('document.getElementById("settings").open = true')
    for key in ("Home", "ArrowRight", "ArrowDown", "ArrowDown"):  # as far as the widest step
        page.keyboard.press(key)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert WIDE in text(page, "path")


def test_the_slider_goes_back_to_what_each_wave_saw(page: Page) -> None:
    assert text(page, "wave-name") == "Wave 2 of 2"
    assert "3 steps added: none granted children, 3 finished" in text(page, "wave-line")
    focus(page, "wave")
    page.keyboard.press("ArrowLeft")
    assert text(page, "wave-name") == "Wave 1 of 2"
    assert "2 of them granted 3 children, 1 pruned; 2 clusters" in text(page, "wave-line")
    figures = [int(number) for number in re.findall(r"\d+", text(page, "kv-line"))]
    assert figures == [19, 10, 9, 39]  # the prompt is on three paths; of 4 tokens of a step the last has no KV yet
    assert page.evaluate('document.getElementById("wave").getAttribute("aria-valuetext")').startswith("Wave 1 of 2")
    page.keyboard.press("ArrowLeft")
    assert text(page, "wave-line") == "The prompt is granted 3 children."
    assert text(page, "node-name") == "Prompt"  # what was selected has not grown yet


def test_arrow_keys_walk_the_tree_and_tell_each_node(page: Page) -> None:
    focus(page, "view")
    walk = [
        ("Home", "Prompt", "the prompt"),
        ("ArrowRight", "Node 1", "on a path that finished · wave 1 · path score 0.900 (prod) · cluster A"),
        ("ArrowDown", "Node 2", "cluster B"),
        ("ArrowDown", "Node 3", "pruned"),
        ("ArrowUp", "Node 2", "on a path that finished"),
        ("ArrowRight", "Node 6", "finished · wave 2 · path score 0.720 (prod) · answer 4, correct"),
        ("PageUp", "Node 2", "granted 1 child"),
        ("PageDown", "Node 6", "finished"),
        ("ArrowLeft", "Node 2", "cluster B"),
        ("End", "Node 6", "answer 4, correct"),  # 0.63 + 0.72 for 4 against 0.81: its best leaf
    ]
    for key, name, told in walk:
        page.keyboard.press(key)
        assert (text(page, "node-name"), told in text(page, "node-line")) == (name, True), key


def test_every_control_can_be_reached_with_a_visible_focus(page: Page) -> None:
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id")
        reached.add(name)
        style = "getComputedStyle(document.activeElement)"
        if name in ("run", "question", "next", "wave", "view"):
            assert page.evaluate(f"{style}.outlineStyle") == "solid"
    assert {"run", "question", "next", "wave", "view", "in", "out", "fit", "table", "votes"} <= reached


def test_a_click_selects_and_another_question_can_be_chosen(page: Page) -> None:
    page.evaluate('document.getElementById("canvas").scrollIntoView()')
    x, y = page.evaluate(
        "(() => { const r = view.canvas.getBoundingClientRect(); return [r.x + view.x(5), r.y + view.y(5)] })()"
    )
    page.mouse.click(x, y)
    assert text(page, "node-name") == "Node 5"
    page.evaluate('document.getElementById("next").click()')
    assert page.evaluate("explorer.index") == 1
    assert page.evaluate('document.getElementById("next").disabled') is True
    page.evaluate('document.querySelector("#votes .chips button").click()')
    assert text(page, "node-name").startswith("Node")


def test_the_vote_adds_up_as_it_did_in_the_run(page: Page) -> None:
    assert "4 won (correct)" in text(page, "vote-line")
    lines = page.evaluate('[...document.querySelectorAll("#votes tbody tr")].map((row) => row.textContent)')
    assert "1.350" in lines[0] and "✓ correct" in lines[0]  # 0.9 x 0.7 + 0.8 x 0.9
    assert "0.810" in lines[1] and "✗ wrong" in lines[1]


def test_plots_show_best_of_n_beside_every_row_and_tell_each_mark(page: Page) -> None:
    told = page.evaluate(
        '[...document.querySelectorAll("#plot-tokens .point")].map((one) => one.getAttribute("aria-label"))'
    )
    assert [label.split(":")[0] for label in told] == ["best of 1", "best of 2", "best of 3", "rebase 3", "best_of_n 3"]
    page.evaluate('document.querySelectorAll("#plot-tokens .point")[3].focus()')
    assert "rebase 3: accuracy 1.000" in text(page, "plot-tokens")


def test_a_run_that_has_finished_nothing_yet_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
    path = write_page(compare([tmp_path], lambda config: Rejudge(MathJudge(3600), [])), tmp_path / "report.html")
    with shown(browser, path, SIZES[0]) as page:
        assert text(page, "title") == "best_of_n at width 16"
        assert page.evaluate('document.getElementById("explorer").hidden') is True


def test_keys_show_a_tall_tree_nearer_and_whole_again(browser: Browser, tmp_path: Path) -> None:
    leaves = tuple(step(number, 0, "= 4", 0.9, finished=True) for number in range(1, 81))
    chosen = {vote: Chosen("4", "correct") for vote in ("best", "majority", "weighted")}
    with EventLog(tmp_path) as log:
        log.write(RunStarted("0", Config().model_dump(mode="json")))
        log.write(QuestionStarted("a", "2+2", "4", 10, "d"))
        log.write(WaveDone("a", 0, leaves, {}, 330, 1120))
        log.write(QuestionFinished("a", chosen, {"correct": 80}, 320, 330.0, 330, 1120, 1))
    path = write_page(compare([tmp_path], lambda config: Rejudge(MathJudge(3600), [])), tmp_path / "report.html")
    with shown(browser, path, SIZES[0]) as page:
        focus(page, "view")
        heights = [page.evaluate("view.rowHeight / view.fitted")]
        for key in ("+", "+", "-", "0", "-"):
            page.keyboard.press(key)
            heights.append(page.evaluate("view.rowHeight / view.fitted"))
        assert heights == pytest.approx([1, 1.6, 2.56, 1.6, 1, 1])


def test_dark_and_light_colors_both_reach_the_canvas(page: Page) -> None:
    seen = set()
    for colors in COLORS:
        page.emulate_media(color_scheme=colors)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seen.add(page.evaluate("view.colors.ink"))
    assert len(seen) == 2


def test_the_columns_of_servers_are_seen_whole(browser: Browser, tmp_path: Path) -> None:
    use = (ServerUse("http://a", 10_496, 2000, 1660, 3), ServerUse("http://b", None, 0, 0, None))
    runs = [write_run(tmp_path / "served", "rebase", 3, use), write_run(tmp_path / "here", "best_of_n", 3)]
    asked = [Question(name, ({"role": "user", "content": "2+2"},), "4") for name in "ab"]
    report = write_page(compare(runs, lambda config: Rejudge(MathJudge(3600), asked)), tmp_path / "report.html")
    with shown(browser, report, SIZES[0]) as page:
        table = page.locator("#table table")
        headings = [heading.replace("\u00ad", "") for heading in table.locator("thead th").all_inner_texts()]
        assert headings[-2:] == ["servers' cache hits", "preemptions"]
        rows = [row.locator("td").all_inner_texts()[-2:] for row in table.locator("tbody tr").all()]
        assert rows == [["0.830", "3"], ["", ""]]
        wide, seen = (page.evaluate(f"document.querySelector('#table').{name}") for name in SEEN)
        assert wide == seen and "Servers' cache hits: the share of prompt tokens" in text(page, "table-note")
