"""Answers judged per second by math-verify behind the kernel's walls, one fork each. `python -m benchmarks.judging`."""

import argparse
import time

from palmette.score.judges.math import MathJudge
from palmette.tasks.task import Question

PAIRS = [(rf"\boxed{{\sqrt{{{number}}}+x}}", rf"x+\sqrt{{{number}}}") for number in range(2, 52)]
"""Solutions and references that only algebra can compare: plain numbers need no process."""


def main() -> None:
    """Judge all pairs a few times; print the rate of each turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    judge = MathJudge(60.0)
    for turn in range(parser.parse_args().turns + 1):
        begun = time.perf_counter()
        for place, (solution, reference) in enumerate(PAIRS):
            question = Question(f"{place}", ({"role": "user", "content": "?"},), reference)
            assert judge.verdict(question, solution, judge.extract(solution)).outcome == "correct"
        if turn:  # The first one also starts the worker.
            print(f"{len(PAIRS) / (time.perf_counter() - begun):.0f} checks a second")


if __name__ == "__main__":
    main()
