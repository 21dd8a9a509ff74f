"""What tests in a real browser share."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import MISSING, find_chromium, started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = find_chromium()
    if binary is None:
        pytest.skip(MISSING)
    with started(binary) as browser:
        yield browser
