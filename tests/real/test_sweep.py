import csv
import json
import subprocess
from pathlib import Path

from tests.command import palmette

GRID = [
    "--strategies", "best_of_n,rebase", "--widths", "2,3", "--seeds", "0", "--set", "task.questions=2",
    "--set", "task.verify_seconds=3600",
]  # fmt: skip


def run(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return palmette("sweep", *arguments, cwd=cwd)


def test_a_sweep_runs_every_cell_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    done = run(*GRID, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    table = (folder / "sweep.csv").read_text()
    assert table.count("\n") == 5
    assert (folder / "report.html").exists()
    plan = json.loads((folder / "sweep.json").read_text())
    assert len(plan["cells"]) == 4
    assert "is added" not in done.stderr
    # Lose one cell, as if the sweep had been killed before it.
    (folder / "rebase-3-seed0" / "events.jsonl").unlink()
    before = (folder / "best_of_n-2-seed0" / "events.jsonl").read_bytes()
    again = run("--resume", str(folder))
    assert again.returncode == 0, again.stderr
    assert (folder / "best_of_n-2-seed0" / "events.jsonl").read_bytes() == before

    def settled(text: str) -> list[dict[str, str]]:
        rows = csv.DictReader(text.splitlines())
        return [{name: value for name, value in row.items() if "second" not in name} for row in rows]

    assert settled((folder / "sweep.csv").read_text()) == settled(table)


def test_best_of_n_is_always_there_to_measure_with_and_a_sweep_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    done = run("--strategies", "rebase", "--widths", "2,3", "--questions", "2", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    assert "best_of_n at width 3 is added" in done.stderr
    table = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["strategy"], row["width"]) for row in table] == [("rebase", "2"), ("rebase", "3"), ("best_of_n", "3")]
    widest = table[-1]
    assert widest["bon_same_tokens"] == widest["weighted"]  # at its own tokens it is itself
    (folder / "report.html").unlink()
    again = palmette("report", str(folder))
    assert again.stdout == f"{folder / 'report.html'}\n"
    page = (folder / "report.html").read_text(encoding="utf-8")
    found = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [one["name"] for one in found["runs"]] == ["rebase-2-seed0", "rebase-3-seed0", "best_of_n-3-seed0"]
    assert [point["branches"] for point in found["curves"][0]] == [1, 2, 3]
    assert found["curves"][0][-1]["generated_tokens"] == float(widest["generated_tokens"])
    assert found["curves"][0][-1]["mean_kv_tokens"] == float(widest["mean_kv_tokens"])
    assert found["curves"][0][-1]["accuracy"] == float(widest["weighted"])


def test_a_refused_sweep_leaves_nothing_and_its_advice_works(tmp_path: Path) -> None:
    wanted = ["--strategies", "ets", "--widths", "2", "--questions", "2", "--set", "search.lambda_diversity=0"]
    out = tmp_path / "sweep"
    refused = run(*wanted, "--set", "search.kv_budget=10KiB", "--out", str(out))
    assert refused.returncode == 3, refused.stderr
    assert not out.exists()
    advice = refused.stderr.rpartition("search.kv_budget ")[2].split(",")[0].strip()
    done = run(*wanted, "--set", f"search.kv_budget={advice}", "--out", str(out))
    assert done.returncode == 0, done.stderr


def test_a_sweep_goes_on_from_another_folder_with_a_task_named_from_its_own(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "1+2", "answer": "3"}) + "\n")
    arguments = ["--strategies", "best_of_n", "--widths", "2", "--set", "task.name=q.jsonl", "--out", "sweep"]
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "sweep" / "best_of_n-2-seed0" / "events.jsonl").unlink()
    again = run("--resume", str(tmp_path / "sweep"))
    assert again.returncode == 0, again.stderr
    wrong = palmette("search", "--resume", str(tmp_path / "sweep"))
    assert wrong.returncode == 2 and "palmette sweep --resume" in wrong.stderr


def test_bad_grids_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    for arguments, said in [
        (["--strategies", "best_of_n,rebas"], "Did you mean 'rebase'"),
        (["--widths", "4,many"], "--widths 4,many: give whole numbers"),
        (["--widths", "4,0"], "search.width cannot be 0"),
        (["--seeds", "1,1"], "one of them was given twice"),
        (["--set", "search.width=3"], "use --widths"),
        (["--resume", str(tmp_path)], "is no sweep"),
        (["--resume", str(tmp_path), "--questions", "3"], "leave the file, --questions, --set"),
    ]:
        if "--resume" not in arguments:
            arguments += ["--out", str(out)]
        done = run(*arguments)
        assert said in done.stderr, done.stderr
        assert done.returncode in (1, 2)
        assert not out.exists()
