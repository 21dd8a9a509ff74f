"""Strategies on `words` with a policy and a judge that are models, as a table for each width.

    python -m benchmarks.words_search --policy POLICY_FOLDER --reward REWARD_FOLDER --widths 16 64

Every strategy gets the same questions; the models are loaded once. Differences from REBASE, or from what `--against`
names, are paired, with 95% intervals by bootstrap over questions. `KV held` is distinct tokens, as the engine's pool
holds them. `best-of-N` is what independent solutions come to with the tokens of the row: the first ones of a best-of-N
search of the width. Below each table the policy and the judge are told by that search: how often one leaf is right, how
many of the first lines of a question differ, and how well the judge ranks.
"""

import argparse
import hashlib
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.pupil_search import STRATEGIES
from benchmarks.words_runs import Run, add_options, limits, open_runs, searched, settings_of
from palmette import Searcher
from palmette.backends.backend import Message
from palmette.run.parts import Parts, load_backend
from palmette.score.scorer import Candidate, KeepsPaths, Scorer
from palmette.search.answer import elect
from palmette.train.supervised.measures import auc


@dataclass
class Noisy:
    """A scorer with an error added to the logit of each score: the same for the same step."""

    scorer: Scorer
    deviation: float

    @property
    def calls(self) -> int:
        """Those of the scorer."""
        return self.scorer.calls

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the scores with their errors."""
        return [
            _sigmoid(_logit(score) + self.deviation * _normal(candidate))
            for score, candidate in zip(self.scorer.score(candidates), candidates, strict=True)
        ]

    def forget(self, messages: Sequence[Message]) -> None:
        """Let the scorer forget a question."""
        if isinstance(self.scorer, KeepsPaths):
            self.scorer.forget(messages)


def _logit(score: float) -> float:
    bounded = min(max(score, 1e-6), 1 - 1e-6)
    return math.log(bounded / (1 - bounded))


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def _normal(candidate: Candidate) -> float:
    told = "\n".join((candidate.messages[-1]["content"], *candidate.steps))
    return random.Random(hashlib.blake2b(told.encode()).digest()).gauss(0, 1)


def with_tokens(independent: Run, width: int, tokens: float) -> float:
    """Return the share that best-of-N answers right with so many tokens a question: the vote of its first leaves."""
    count = max(1, round(tokens / independent.mean("tokens") * width))
    elected = ((answered, elect(answered.ballots[:count], "weighted")) for answered in independent.answers)
    return statistics.fmean(ballot is not None and ballot.answer == answered.reference for answered, ballot in elected)


def quality(independent: Run) -> str:
    """Return what independent solutions tell: how often one is right, how far they differ, and how the judge ranks.

    Solutions are ranked within each question.
    """
    alone = statistics.fmean(sum(answered.verdicts) / answered.leaves for answered in independent.answers)
    areas = [auc([ballot.score for ballot in answered.ballots], answered.verdicts) for answered in independent.answers]
    ranks = [area for area in areas if area is not None]
    steps = [step for answered in independent.answers for step in answered.steps]
    told = auc([score for score, _ in steps], [label for _, label in steps])
    return (
        f"one leaf is right {alone:.3f}; first lines that differ {independent.mean('distinct'):.2f}; "
        f"judge: AUC of {len(steps):,} steps {told or math.nan:.3f} ({fmean_or_nan([label for _, label in steps]):.2f} "
        f"right), of one question's solutions {fmean_or_nan(ranks):.3f} ({len(ranks)} questions)"
    )


def fmean_or_nan(values: Sequence[float]) -> float:
    """Return the mean, NaN of none."""
    return statistics.fmean(values) if values else math.nan


def row(strategy: str, width: int, run: Run, other: Run, independent: Run) -> str:
    """Return a row of the table, with what it differs by from another run."""
    held, tokens = run.mean("held"), run.mean("tokens")
    found = statistics.fmean(any(answered.verdicts) for answered in run.answers)
    return (
        f"| {strategy} | {statistics.fmean(run.right()):.3f} | {statistics.fmean(run.right('best')):.3f} "
        f"| {statistics.fmean(run.right('majority')):.3f} "
        f"| {found:.3f} | {run.against(other)} | {held:,.0f} | {run.mean('peak'):,.0f} "
        f"| {other.mean('held') / held:.2f} | {tokens:,.0f} | {with_tokens(independent, width, tokens):.3f} "
        f"| {tokens * len(run.answers) / run.seconds:,.0f} | {len(run.answers) / run.seconds:.2f} |"
    )


def main() -> None:
    """Print one table for each width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--against", default="rebase", help="the strategy that the others are compared with")
    parser.add_argument("--pool", type=int, help="tokens that the KV pool holds at most: it evicts and computes again")
    parser.add_argument("--noise", type=float, default=0.0, help="deviation of an error added to the judge's logits")
    parser.add_argument("--ask", action="store_true", help="print no table: with --runs, to ask in several processes")
    options = parser.parse_args()
    against = options.against
    if unknown := [name for name in (*options.strategies, against) if name.partition(":")[0] not in STRATEGIES]:
        parser.error(f"no strategy {', '.join(unknown)}: there are {', '.join(STRATEGIES)}")
    if options.runs:
        open_runs(options)

    @cache
    def load() -> Parts:
        searcher = Searcher(strategy="ets", settings=settings_of(options), **limits(options))
        parts = searcher.load()
        if options.pool:
            pool_bytes = options.pool * parts.backend.kv_bytes_per_token
            parts = replace(parts, backend=load_backend(searcher.config.policy, pool_bytes))
        if options.noise and parts.scorer is not None:
            parts = replace(parts, scorer=Noisy(parts.scorer, options.noise))
        return parts

    for width in options.widths:
        if options.ask:
            for strategy in options.strategies:
                searched(load, strategy, width, options)
            continue
        print(f"\nwidth {width}, {len(options.seeds)} x {options.questions} questions of grade {options.grade}\n")
        print(
            f"| strategy | weighted | best | majority | a leaf right | against {against} | KV held, mean | peak "
            f"| {against}'s mean / this | tokens | best-of-N with these | tokens/s | questions/s |\n"
            "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|"
        )
        runs: dict[str, Run] = {}
        for strategy in sorted({*options.strategies, against, "best_of_n"}, key=order):
            print(f"{strategy} {width}", file=sys.stderr, flush=True)
            runs[strategy] = searched(load, strategy, width, options)
            if against in runs and "best_of_n" in runs:
                for name in list(runs) if strategy == against else [strategy]:
                    print(row(name, width, runs[name], runs[against], runs["best_of_n"]), flush=True)
        print(f"\n{quality(runs['best_of_n'])}", flush=True)


def order(strategy: str) -> int:
    """Return the place of a strategy in the table."""
    return STRATEGIES.index(strategy.partition(":")[0])


if __name__ == "__main__":
    main()
