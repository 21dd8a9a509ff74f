"""Writes the report: one HTML file that needs no network and in which no text of a model can run."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from palmette.errors import ConfigError, RunError
from palmette.report.compare import Comparison, curve_values

SCRIPTS = (
    "page.js",
    "results.js",
    "axes.js",
    "plot.js",
    "memory.js",
    "occupancy.js",
    "workers.js",
    "layout.js",
    "canvas.js",
    "tree.js",
    "explore.js",
    "controls.js",
    "start.js",
)


EXPLORER = ("page.js", "layout.js", "canvas.js", "tree.js", "explore.js", "controls.js")
"""The scripts that draw a tree on any page with the explorer's elements, see `with_explorer`."""


def read_sources(names: Sequence[str]) -> str:
    """Return scripts or styles of this folder, joined."""
    source = files("palmette.report")
    return "\n".join(source.joinpath(name).read_text(encoding="utf-8") for name in names)


def with_explorer(page: str) -> str:
    """Return a page with the explorer's elements in their place."""
    return page.replace("{{explorer}}\n", read_sources(["explorer.html"]))


def write_page(compared: Comparison, path: Path) -> Path:
    """Write the report of a comparison to `path` and return `path`. A file that exists is replaced in one step.

    Raises ConfigError if `path` names no file, RunError if it cannot be written.
    """
    values = {
        "runs": compared.runs,
        "rows": [{**row.values, "vote": row.vote} for row in compared.rows],
        "curves": [curve_values(points) for points in compared.curves.values()],
    }
    return write_html(path, "page.html", SCRIPTS, ("page.css",), values)


def write_html(
    path: Path, template: str, scripts: Sequence[str], styles: Sequence[str], values: Mapping[str, Any]
) -> Path:
    """Write a page from a template, scripts and styles of this folder, with these values as its data; return `path`.

    Raises as `write_page` does.
    """
    data = json.dumps(values, separators=(",", ":"), allow_nan=False)
    script, style = read_sources(scripts), read_sources(styles)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = with_explorer(read_sources([template]))
    # Insert the data last and without "<": text of a model can neither end the element nor be taken for a placeholder.
    page = page.replace("{{digest}}", digest).replace("{{script}}", script)
    page = page.replace("{{style}}", style)
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
