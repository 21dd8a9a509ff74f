"""The practices in docs/practices.md, from their files. `python -m tests.practices_page` writes them."""

import re
from pathlib import Path

from palmette.practices.find import page, practices

PAGE = Path(__file__).parents[1] / "docs" / "practices.md"
_PLACE = re.compile(r"(?<=<!-- practices -->\n).*(?=<!-- end -->)", re.DOTALL)


def written() -> str:
    """Return all practices as the page should have them."""
    return "\n".join(page(practice) for practice in practices().values())


def listed() -> str:
    """Return all practices as the page has them."""
    found = _PLACE.search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE} has no place for practices"
    return found[0]


def main() -> None:
    """Write the practices into the page."""
    PAGE.write_text(_PLACE.sub(lambda _: written(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
