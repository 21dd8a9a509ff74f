"""Programs that tests start in the place of others."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def fake_program(folder: Path) -> Path:
    """Return a program that behaves as `tests.fake_server` does, whatever module it is told to run."""
    program = folder / "fake-python"
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} -m tests.fake_server "$@"\n')
    program.chmod(0o755)
    return program
