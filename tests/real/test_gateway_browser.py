"""The gateway's page in a real browser: a tree grows in it, and nothing that a model writes can run.

What is waited for is named by selectors: the page's policy forbids the code that other waits would run in it.
"""

import pytest
from playwright.sync_api import Browser, Page

from palmette.backends.backend import Expansion
from tests.browser import opened, text
from tests.gateway import Gate, Served, get, scripted

pytestmark = pytest.mark.browser
HOSTILE = "<script>window.pwned=1</script><img src=x onerror=window.pwned=2>"
ANSWER = "<b onmouseover=window.pwned=3>4</b>"
SIZES = [(1280, 900), (390, 844)]


def script(expansion: Expansion, prefix: str) -> str:
    """Write markup and code."""
    if prefix.count("\n") < 2:
        return f"{HOSTILE} {expansion.seed % 9} {'w' * 90}\n"
    return f"so \\boxed{{{ANSWER}}}$"


def last_wave() -> Gate:
    """Hold back the last wave until a test has seen the tree."""
    return Gate(lambda expansion, prefix: prefix.count("\n") == 2)


def answered(page: Page, served: Served, gate: Gate) -> None:
    """Ask on the page; the tree is seen while it grows, then the answer."""
    page.goto(served.url)
    page.wait_for_selector("#model option:nth-child(2)", state="attached")
    page.fill("#text", f"{HOSTILE} 2+2")
    page.select_option("#model", "script:rebase")
    page.click("#send")
    page.wait_for_selector("#verdict:has-text('grows')")
    assert "so far" in text(page, "tree-note") and HOSTILE in text(page, "reasoning")
    assert page.is_enabled("#stop") and page.is_hidden("#vote")
    gate.open()
    page.wait_for_selector("#vote:visible")
    page.wait_for_selector("#send:enabled")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}px")
def test_a_question_is_asked_its_tree_grows_and_no_text_of_the_model_runs(
    browser: Browser, size: tuple[int, int]
) -> None:
    gate, errors, asked = last_wave(), list[str](), list[str]()
    with scripted(script, lambda step: 0.5, gate, total_tokens=800) as served, opened(browser, *size) as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        answered(page, served, gate)
        assert text(page, "answer") == ANSWER and ANSWER in text(page, "vote-line")
        assert "tokens in all branches" in text(page, "counts")
        page.keyboard.press("Tab")
        page.focus("#view")
        page.keyboard.press("ArrowLeft")
        assert text(page, "node-name").startswith("Node")
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.querySelectorAll('main script, main img, main b').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], "nothing is wider than the screen"
        tree = next(url for url in asked if "/trees/" in url).removesuffix("/data")
        page.goto(tree)
        page.wait_for_selector("#vote:visible")
        assert page.is_hidden("#ask") and ANSWER in text(page, "votes") and page.evaluate("window.pwned") is None
        assert all(url.startswith(served.url) for url in asked)
    assert errors == []


def test_stop_on_the_page_ends_the_search(browser: Browser) -> None:
    gate = last_wave()
    with scripted(script, lambda step: 0.5, gate, total_tokens=800) as served, opened(browser, 1280, 900) as page:
        page.goto(served.url)
        page.wait_for_selector("#model option:nth-child(2)", state="attached")
        page.fill("#text", "2+2")
        page.select_option("#model", "script:beam")
        page.click("#send")
        gate.reached.wait()
        page.click("#stop")
        page.wait_for_selector("#answer:has-text('Stopped.')")
        gate.open()
        while served.gateway.admission.searches:
            page.wait_for_timeout(10)


def test_the_page_allows_nothing_but_its_own_files() -> None:
    with scripted(script) as served:
        policy = get(served.url).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert get(f"{served.url}/assets/page.js").headers["x-content-type-options"] == "nosniff"
        for path in ("/assets/../pages.py", "/assets/secret", "/trees/unknown/data"):
            assert get(served.url + path).status_code == 404
