"""Examples out of the pages of docs/: fenced blocks with their language and what else their first line says."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(?P<told>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block. `told` is what follows the language: `title="..."`, `no-run`, or nothing."""

    language: str
    told: str
    text: str
    line: int

    @property
    def title(self) -> str | None:
        """The name of the file that the block is, None where it is none."""
        found = re.search(r'title="([^"]+)"', self.told)
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page below the root of the repository, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        language, _, told = fence["told"].partition(" ")
        found.append(Block(language, told, fence["text"], text[: fence.start()].count("\n") + 2))
    return found


def python_script(page: str) -> str:
    """Return the untitled Python blocks as one script whose line numbers are those of the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and not block.told:
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def commands(page: str) -> list[str]:
    """Return the `palmette` commands of blocks without a language."""
    shown = [line for block in blocks(page) if not block.language for line in block.text.splitlines()]
    return [line for line in shown if line.startswith("palmette ")]
