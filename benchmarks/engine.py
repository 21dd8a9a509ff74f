"""Tokens per CPU second of the engine against plain decoding, on searches with the shipped seedling.

    python benchmarks/engine.py --questions 16 --widths 16 64 256

Both grow the same trees (REBASE on made-up scores, so that branches fork) and take turns; each turn starts anew.
"""

import argparse
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.plain import PlainBackend
from palmette.backends.backend import Backend
from palmette.backends.local import LocalBackend
from palmette.config import TaskSettings
from palmette.engine.sampler import Sampling
from palmette.score.scorer import Candidate
from palmette.search import rebase
from palmette.search.loop import Growth, Limits, Observer, search
from palmette.tasks.load import load_task
from palmette.tasks.task import Question
from palmette.zoo.load import load_policy


class MadeUpScores:
    """Scores by a hash of the text: as good as any for timing."""

    calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score for each candidate."""
        texts = ["".join(candidate.steps) for candidate in candidates]
        return [hashlib.blake2b(text.encode(), digest_size=1).digest()[0] / 256 for text in texts]


class Count(Observer):
    """Counts tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self.kv_tokens = 0

    def finished(self, growth: Growth) -> None:
        """Add up what a finished question generated."""
        self.tokens += growth.tree.generated_tokens()


def timed(make: Callable[[], Backend], questions: Sequence[Question], width: int) -> tuple[int, float]:
    """Return the tokens that one search generated and the CPU seconds it took."""
    backend, count = make(), Count()
    limits = Limits(width, depth=10, step_tokens=64, total_tokens=256, questions_in_flight=16)
    begun = time.process_time()
    search(questions, backend, MadeUpScores(), rebase.at_temperature(0.2), limits, seed=0, how="last", observer=count)
    return count.tokens, time.process_time() - begun


def main() -> None:
    """Print one line for each width."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="seedling")
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--plain-rows", type=int, default=128)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only-engine", action="store_true")
    options = parser.parse_args()
    model, tokenizer = load_policy(options.model)
    task = load_task(TaskSettings(name="ladder", questions=options.questions))
    makers: dict[str, Callable[[], Backend]] = {
        "engine": lambda: LocalBackend(
            model, tokenizer, step_end=task.step_end, sampling=Sampling(), batch_rows=options.rows
        ),
        "plain": lambda: PlainBackend(model, tokenizer, Sampling(), options.plain_rows),
    }
    if options.only_engine:
        del makers["plain"]
    for width in options.widths:
        rates: dict[str, list[float]] = {name: [] for name in makers}
        sizes = set()
        for _ in range(options.turns):
            for name, make in makers.items():
                tokens, seconds = timed(make, task.questions, width)
                rates[name].append(tokens / seconds)
                sizes.add(tokens)
        told = ", ".join(f"{name} {statistics.median(values):,.0f}" for name, values in rates.items())
        ratio = statistics.median(rates["engine"]) / statistics.median(rates.get("plain", rates["engine"]))
        print(f"width {width}: {told} tokens per CPU second, ratio {ratio:.1f}, tokens {sizes}", flush=True)


if __name__ == "__main__":
    main()
