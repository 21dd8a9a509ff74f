import json
import subprocess
import sys
from pathlib import Path

SWEEP = [sys.executable, "-m", "palmette", "sweep"]
GRID = ["--strategies", "best_of_n,rebase", "--widths", "2,3", "--seeds", "0", "--set", "task.questions=2"]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SWEEP, *arguments], capture_output=True, text=True, check=False)


def test_a_sweep_runs_every_cell_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    done = run(*GRID, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    table = (folder / "sweep.csv").read_text()
    assert table.count("\n") == 5
    assert (folder / "report.html").exists()
    plan = json.loads((folder / "sweep.json").read_text())
    assert len(plan["cells"]) == 4
    # Lose one cell, as if the sweep had been killed before it.
    (folder / "rebase-3-seed0" / "events.jsonl").unlink()
    before = (folder / "best_of_n-2-seed0" / "events.jsonl").read_bytes()
    again = run("--resume", str(folder))
    assert again.returncode == 0, again.stderr
    assert (folder / "best_of_n-2-seed0" / "events.jsonl").read_bytes() == before

    def settled(text: str) -> list[list[str]]:
        return [line.split(",")[:-2] for line in text.splitlines()]  # without seconds and rate

    assert settled((folder / "sweep.csv").read_text()) == settled(table)


def test_bad_grids_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    for arguments, said in [
        (["--strategies", "best_of_n,rebas"], "Did you mean 'rebase'"),
        (["--widths", "4,many"], "--widths 4,many: give whole numbers"),
        (["--widths", "4,0"], "search.width cannot be 0"),
        (["--seeds", "1,1"], "one of them was given twice"),
        (["--resume", str(tmp_path)], "is no sweep"),
    ]:
        if "--resume" not in arguments:
            arguments += ["--out", str(out)]
        done = run(*arguments)
        assert said in done.stderr, done.stderr
        assert done.returncode in (1, 2)
        assert not out.exists()
