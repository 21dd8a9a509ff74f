"""The module list of docs/architecture.md, from the modules' docstrings. `python -m tests.architecture` writes it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "palmette"
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = (
    "commands",
    "serve",
    "agents",
    "run",
    "report",
    "launch",
    "scale",
    "simulate",
    "planner",
    "train",
    "search",
    "score",
    "backends",
    "engine",
    "memory",
    "zoo",
    "tasks",
    "events",
    "profiles",
    "practices",
    "failures",
    "settings",
)
"""In the order in which they may import each other."""

_LIST = re.compile(r"(?<=<!-- modules -->\n).*(?=<!-- end -->)", re.DOTALL)


def module_list() -> str:
    """Return a heading for each room and a line for each module: its path and the first line of its docstring."""
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(ROOMS), f"tests/architecture.py does not order {rooms ^ set(ROOMS)}"
    parts = [_lines(sorted(PACKAGE.glob("*.py")))]
    for room in ROOMS:
        folders = [PACKAGE / room, *sorted(path for path in (PACKAGE / room).rglob("*") if path.is_dir())]
        modules = [path for folder in folders for path in sorted(folder.glob("*.py"))]
        parts.append(f"### {room}/\n{_lines(modules)}")
    return "\n".join(parts)


def listed() -> str:
    """Return the module list as the page has it."""
    found = _LIST.search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE} has no place for its modules"
    return found[0]


def main() -> None:
    """Write the list into the page."""
    PAGE.write_text(_LIST.sub(lambda _: module_list(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _lines(modules: list[Path]) -> str:
    return "".join(f"- `{path.relative_to(PACKAGE).as_posix()}`: {_first_line(path)}\n" for path in modules)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].rstrip(".")


if __name__ == "__main__":
    main()
