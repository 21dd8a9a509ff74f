"""Searches with steps of all lengths by two source trees, alternating: seconds, ticks, and rows filled per tick.

git worktree add ../before COMMIT
python -m benchmarks.pace --before ../before/src

SmolLM2 writes real text for `rg:chain_sum`, at most 128 tokens a branch. The last case has one question that is 20
times longer than the others, and the same questions without it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parents[1] / "src"
BRANCH_TOKENS = 128
SHORT_TOKENS = 6
"""Tokens of a branch of a short question in the uneven case: a twentieth of the long one's."""


class Case(NamedTuple):
    """A search: how many questions at which width, by which strategy; whether one question is longer, and is asked."""

    questions: int
    width: int
    strategy: str
    uneven: str = ""

    @property
    def name(self) -> str:
        """The case on the command line and in the table."""
        return f"{self.questions}x{self.width}-{self.strategy}{'-' + self.uneven if self.uneven else ''}"


CASES = [
    Case(questions, width, strategy)
    for questions, width in ((4, 4), (1, 16), (64, 4), (16, 16))
    for strategy in ("best_of_n", "rebase")
] + [Case(13, 4, "best_of_n", uneven) for uneven in ("with", "without")]


class Uneven:
    """A backend that ends the solutions of all questions but one after a few tokens. Serves both contracts."""

    def __init__(self, backend: Any, long: str) -> None:
        self._backend, self._long = backend, long
        self.kv_bytes_per_token, self.context_tokens = backend.kv_bytes_per_token, backend.context_tokens
        self.encode, self.release = backend.encode, backend.release
        if hasattr(backend, "start"):
            self.start: Callable[[Sequence[Any]], None] = lambda wishes: backend.start([*map(self._asked, wishes)])
            self.finished = lambda: [(wish, self._told(wish, step)) for wish, step in backend.finished()]

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return int(self._backend.calls)

    @property
    def on_tokens(self) -> Any:
        """Called with the tokens of a tick."""
        return self._backend.on_tokens

    @on_tokens.setter
    def on_tokens(self, callback: Any) -> None:
        self._backend.on_tokens = callback

    def expand(self, expansions: Sequence[Any]) -> list[Any]:
        """Write steps in one call."""
        steps = self._backend.expand([*map(self._asked, expansions)])
        return [self._told(wish, step) for wish, step in zip(expansions, steps, strict=True)]

    def _asked(self, wish: Any) -> Any:
        return wish if wish.question == self._long else replace(wish, max_tokens=min(wish.max_tokens, SHORT_TOKENS))

    def _told(self, wish: Any, step: Any) -> Any:
        return step if wish.question == self._long else replace(step, finish="end")


def measure(case: Case) -> dict[str, float]:
    """Search once after a warm-up; return the numbers of the table."""
    import palmette
    from palmette.config import load_config
    from palmette.run.parts import load_backend, load_scorer

    given = {
        "policy.model": "smollm2-135m", "search.strategy": case.strategy, "search.width": case.width,
        "search.total_tokens": BRANCH_TOKENS, "seed": 11, "search.questions_in_flight": 4 if case.uneven else 16,
        **({"reward.model": "smollm2-135m", "reward.score": "likelihood"} if case.strategy != "best_of_n" else {}),
    }  # fmt: skip
    config = load_config(None, given, given_by="arguments")
    task = palmette.load_task("rg:chain_sum", questions=case.questions, seed=3)
    backend: Any = load_backend(config.policy)
    questions = task.questions
    if case.uneven:
        backend = Uneven(backend, questions[0].id)
        questions = questions if case.uneven == "with" else questions[1:]
    scorer: Any = None if case.strategy == "best_of_n" else load_scorer(config.reward)
    rows: list[int] = []
    tokens = 0

    def heard(progress: Any) -> None:
        nonlocal tokens
        if progress.tokens > tokens:
            rows.append(progress.tokens - tokens)
            tokens = progress.tokens

    settings = {key: value for key, value in given.items() if key.startswith("search.") and key != "search.strategy"}
    with palmette.Searcher(backend, scorer, case.strategy, settings={**settings, "seed": 11}) as searcher:
        searcher.search("1+1=", progress=None)
        begun, cpu_begun = time.perf_counter(), time.process_time()
        seconds_at_last, ticks_at_last = 0.0, 0
        for result in searcher.stream(questions, progress=heard):
            if not (case.uneven == "with" and result.question.id == questions[0].id):
                seconds_at_last, ticks_at_last = time.perf_counter() - begun, len(rows)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "tokens": tokens,
        "ticks": len(rows),
        "rows_per_tick": round(statistics.mean(rows), 2),
        "others_seconds": round(seconds_at_last, 2),
        "others_ticks": ticks_at_last,
    }


def main() -> None:
    """Measure the chosen cases by both trees, in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src folder of the commit to compare with")
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES], help="names, all without")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    by_name = {case.name: case for case in CASES}
    if chosen.measure:
        print(json.dumps(measure(by_name[chosen.measure])))
        return
    sides = {"after": HERE} if chosen.before is None else {"before": chosen.before.resolve(), "after": HERE}
    for name in chosen.cases:
        for _ in range(chosen.repeats):
            for side, source in sides.items():
                print(f"{name} {side}: {_run(name, source)}", flush=True)


def _run(name: str, source: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "benchmarks.pace", "--measure", name]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    found = json.loads(done.stdout.splitlines()[-1])
    return ", ".join(f"{value} {key}" for key, value in found.items())


if __name__ == "__main__":
    main()
