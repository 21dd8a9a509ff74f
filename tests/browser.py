"""The browser that is installed on the machine, driven by Playwright."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

Colors = Literal["light", "dark"]
COLORS: tuple[Colors, ...] = ("light", "dark")
MISSING = "no Chromium that starts on this machine: apt-get install chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@cache
def find_chromium() -> str | None:
    """Return the path of a browser that can tell its version, None where there is none: some are empty wrappers."""
    return next((path for name in _NAMES if (path := shutil.which(name)) and _starts(path)), None)


def _starts(path: str) -> bool:
    return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


@contextmanager
def started(path: str) -> Iterator[Browser]:
    """Start a browser without a window; end it afterwards."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*_FLAGS], timeout=0)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, width: int, height: int, colors: Colors = "light") -> Iterator[Page]:
    """Open a tab that shares nothing with any other; nothing that is done in it has to be done within some time."""
    with browser.new_context(viewport={"width": width, "height": height}, color_scheme=colors) as context:
        context.set_default_timeout(0)
        yield context.new_page()


@contextmanager
def shown(browser: Browser, path: Path, size: tuple[int, int]) -> Iterator[Page]:
    """Open a report; afterwards nothing in it has failed, and nothing but itself was asked for."""
    errors: list[str] = []
    asked: list[str] = []
    with opened(browser, *size) as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        yield page
    assert errors == []
    assert asked == [path.as_uri()]


def text(page: Page, name: str) -> Any:
    """Return the text of the element with this id."""
    return page.evaluate(f'document.getElementById("{name}").textContent')


def focus(page: Page, name: str) -> None:
    """Move the focus to the element with this id."""
    page.evaluate(f'document.getElementById("{name}").focus()')
