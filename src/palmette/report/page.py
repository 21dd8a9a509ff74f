"""Writes one self-contained HTML page: no network, and nothing in a model's text can run."""

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from palmette.errors import ConfigError, RunError
from palmette.report.story import run_story


def write_page(folders: Sequence[Path], path: Path) -> Path:
    """Write the page about these runs and return its path; a page that was there stays whole until the new one is."""
    data = json.dumps([run_story(folder) for folder in folders], separators=(",", ":"), allow_nan=False)
    source = files("palmette.report")
    script = source.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = source.joinpath("page.html").read_text(encoding="utf-8")
    # The data goes in last and holds no "<": no text of a model can end its element or be taken for a placeholder.
    page = page.replace("{{digest}}", digest).replace("{{script}}", script)
    page = page.replace("{{data}}", data.replace("<", "\\u003c"))
    if not path.name:
        raise ConfigError(f"cannot write the report to {str(path)!r}: name a file, for example report.html")
    partial = path.with_name(f".report-{os.getpid()}.part")
    try:
        partial.write_text(page, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RunError(f"cannot write the report {path}: {error.strerror}") from error
    return path
