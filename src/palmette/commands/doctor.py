"""`palmette doctor`: says what is wrong with a run, a log, a config or this machine, and which setting works."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from palmette.commands import flags
from palmette.units import one_line

_WRONG = 1
_LONGEST = 2000


def doctor(
    subject: Annotated[
        Path | None, typer.Argument(metavar="[RUN_DIR | LOG | CONFIG]", help="What to examine; without, this machine.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Show what is right, too.")] = False,
    as_json: flags.AsJson = False,
) -> None:
    """Say what is wrong, with the numbers found, and a setting that works; exit 1 where something is wrong.

    Reads the folder of a run, a log of palmette, torch, vLLM, SGLang, TRL or verl, or a config (.yaml).
    """
    from palmette.agents.doctor.examine import examine

    findings = examine(subject)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            if not (finding.is_wrong or all or subject is None):
                continue
            print(f"{'WRONG' if finding.is_wrong else 'ok   '}  {finding.about}: {one_line(finding.found, _LONGEST)}")
            for line in finding.advice:
                print(f"       do: {one_line(line, _LONGEST)}")
            if finding.is_wrong and finding.why:
                print(f"       why: {one_line(finding.why, _LONGEST)}")
        wrong = sum(finding.is_wrong for finding in findings)
        print(f"{wrong} wrong, {len(findings) - wrong} right")
    if any(finding.is_wrong for finding in findings):
        raise typer.Exit(_WRONG)
