"""kill -9 of a server at random moments of one search: every question is answered, none twice, no tree changes.

    python -m benchmarks.server_kills --vllm .venv-vllm/bin/python --kills 5

The search runs as a command, starts its server itself and starts it again after each kill. The moments are random
numbers of waves after the server was ready. The trees are compared with those of the same search in one process.
"""

import argparse
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from palmette.event_log import FILE_NAME, read_events
from palmette.events import QuestionFinished
from tests.server.started import command_of, groups_of, searched, trees

QUESTIONS = 12


def killed_search(flags: list[str], search: list[str], run: Path, kills: int, moments: random.Random) -> list[int]:
    """Search with so many kills; return after how many waves each came."""
    words = command_of("search", *search, *flags, "--set", f"servers.restarts={kills}", "--up", "--out", str(run))
    came: list[int] = []
    killed: set[int] = set()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        while len(came) < kills and process.poll() is None:
            at = _waves(run) + moments.randint(1, 12)
            while process.poll() is None and _waves(run) < at:
                time.sleep(0.02)
            fresh = [group for group in groups_of(process.pid) if group not in killed]
            if fresh and process.poll() is None:
                came.append(_waves(run))
                killed.add(fresh[0])
                os.kill(fresh[0], signal.SIGKILL)
        assert process.wait() == 0
    return came


def _waves(run: Path) -> int:
    try:
        return (run / FILE_NAME).read_text(encoding="utf-8").count('"kind":"wave_done"')
    except OSError:
        return 0


def main() -> None:
    """Print after how many waves each kill came, and what became of the questions."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm", help="the Python that has vLLM")
    parser.add_argument("--sglang", help="the Python that has SGLang")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    search = [
        *("--strategy", "ets", "--width", "16", "--questions", str(QUESTIONS), "--set", "policy.temperature=0"),
        *(
            "--set",
            "search.questions_in_flight=2",
            "--set",
            "search.total_tokens=160",
            "--set",
            "memory.prompt_tokens=64",
        ),
    ]
    with TemporaryDirectory() as folder:
        local = searched(Path(folder) / "local", search=search)
        for engine in ("vllm", "sglang"):
            if python := getattr(given, engine):
                run = Path(folder) / engine
                flags = ["--backend", engine, "--set", f"servers.{engine}_python={python}"]
                came = killed_search(flags, search, run, given.kills, random.Random(given.seed))
                finished = [event.question for event in read_events(run) if isinstance(event, QuestionFinished)]
                twice = len(finished) - len(set(finished))
                same = sum(trees(run).get(question) == tree for question, tree in trees(local).items())
                print(
                    f"{engine}: {len(came)} kills after {', '.join(map(str, came))} waves; {len(set(finished))} of "
                    f"{QUESTIONS} questions answered, {twice} twice, {same} trees as in one process"
                )


if __name__ == "__main__":
    main()
