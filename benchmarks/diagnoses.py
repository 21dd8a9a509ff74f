"""Counts how often the doctor tells the right cause of real failures, and prints what it says of the others.

The thirty are the 20 texts of tests/unit/failures/fifth_trial.yaml, five each of vLLM, SGLang, verl and TRL by number,
and the ten that were made here. The other files are further texts of public threads: docs/doctor.md has their history.

python -m benchmarks.diagnoses
"""

from pathlib import Path

import yaml

from palmette.agents.doctor.diagnose import diagnose

FOLDER = Path(__file__).parents[1] / "tests/unit/failures"
PUBLIC = "https://github.com/"
Row = dict[str, str]


def texts() -> dict[str, list[Row]]:
    """Return the texts of each file; what was made here stands in two of them, and is one more."""
    files = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
    made = [row for rows in files.values() for row in rows if not row["from"].startswith(PUBLIC)]
    public = {name: [row for row in rows if row["from"].startswith(PUBLIC)] for name, rows in files.items()}
    return {**public, "made_here": made}


def thirty(files: dict[str, list[Row]]) -> list[Row]:
    """Return 20 public texts and the ten that were made here."""
    return [*files["fifth_trial"], *files["made_here"]]


def missed(rows: list[Row]) -> list[str]:
    """Return a line for each text whose cause is not told: what it is, and what is said instead."""
    found = [(row, diagnose(row["text"])) for row in rows]
    return [
        f"{row['from'].removeprefix(PUBLIC)}: {row['cause']}; said is {told.id or told.cause} ({told.evidence[:80]})"
        for row, told in found
        if told.id != row["cause"]
    ]


def main() -> None:
    """Print the counts and the misses."""
    files = texts()
    every = [row for rows in files.values() for row in rows]
    for name, rows in {**files, "all": every, "the thirty": thirty(files)}.items():
        wrong = missed(rows)
        print(f"{name}: right {len(rows) - len(wrong)} of {len(rows)}")
        if name == "all":
            continue
        for line in wrong:
            print(f"  {line}")


if __name__ == "__main__":
    main()
