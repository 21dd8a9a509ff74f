"""Strategies on `words` with a policy and a judge that are models, as a table for each width.

    python -m benchmarks.words_search --policy POLICY_FOLDER --reward REWARD_FOLDER --widths 16 64

Every strategy gets the same questions; the models are loaded once. Differences from REBASE are paired, with 95%
intervals by bootstrap over questions. `KV held` is distinct tokens, as the engine's pool holds them. `best-of-N` is
what independent solutions come to with the tokens of the row: the first ones of a best-of-N search of the width. Below
each table the policy and the judge are told by that search: how often one leaf is right, how many of the first lines of
a question differ, and how well the judge ranks.
"""

import argparse
import hashlib
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from benchmarks.pupil_search import STRATEGIES, interval, right
from palmette import Searcher, SearchResult, load_task
from palmette.backends.backend import Message
from palmette.run.parts import Parts, load_backend
from palmette.score.scorer import Candidate, KeepsPaths, Scorer
from palmette.search.answer import elect
from palmette.tasks.task import Task
from palmette.tasks.words.check import check_solution
from palmette.tasks.words.reading import read_problem
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


@dataclass(frozen=True)
class Run:
    """The results of a strategy, and the seconds that they took."""

    results: list[SearchResult]
    seconds: float

    def mean(self, name: str) -> float:
        """Return the mean of an attribute of the results."""
        return statistics.fmean(getattr(result, name) for result in self.results)


def searched(parts: Parts, strategy: str, width: int, options: argparse.Namespace) -> Run:
    """Search the questions of all seeds."""
    results: list[SearchResult] = []
    began = time.perf_counter()
    for seed in options.seeds:
        with Searcher(
            strategy=strategy, seed=seed, width=width, settings=settings_of(options), parts=parts, **limits(options)
        ) as searcher:
            results += searcher.search(questions(seed, options))
    return Run(results, time.perf_counter() - began)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given by `--set`, over those of the models."""
    given = {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in options.set)}
    return {"policy.model": options.policy, "reward.model": options.reward, "task.name": "words", **given}


def limits(options: argparse.Namespace) -> dict[str, Any]:
    """Return where branches stop."""
    return {"total_tokens": options.total_tokens, "step_tokens": options.step_tokens, "depth": 40}


def questions(seed: int, options: argparse.Namespace) -> Task:
    """Return the questions of a seed, of the test split."""
    told = {} if options.prompt is None else {"prompt": options.prompt}
    return load_task(
        "words",
        questions=options.questions,
        split="test",
        seed=seed,
        grade=options.grade,
        generator={"plain": options.plain},
        **told,
    )


def with_tokens(independent: Run, width: int, tokens: float) -> float:
    """Return the share that best-of-N answers right with so many tokens a question: the vote of its first leaves."""
    count = max(1, round(tokens / independent.mean("tokens") * width))
    elected = ((result, elect(result.ballots[:count], "weighted")) for result in independent.results)
    return statistics.fmean(
        ballot is not None and ballot.answer == result.question.reference for result, ballot in elected
    )


def quality(independent: Run) -> str:
    """Return what independent solutions tell: how often one is right, how far they differ, and how the judge ranks.

    A step is right if the checker says that it follows. Solutions are ranked within each question.
    """
    scores: list[float] = []
    labels: list[bool] = []
    ranks: list[float] = []
    alone: list[float] = []
    distinct: list[float] = []
    for result in independent.results:
        problem = read_problem(result.question.messages[-1]["content"].split("\n")[0])
        verdicts = [ballot.answer == result.question.reference for ballot in result.ballots]
        alone.append(sum(verdicts) / len(result.leaves))
        area = auc([ballot.score for ballot in result.ballots], verdicts)
        ranks += [] if area is None else [area]
        paths = [result.tree.steps(leaf.id) for leaf in result.leaves]
        distinct.append(len({path[0].text for path in paths}) / len(paths))
        for path in paths[:2]:
            checks = check_solution(problem, "".join(step.text for step in path))
            told = [step.score for step in path if step.text.strip()]
            for check, score in zip(checks, told, strict=False):
                if score is not None:
                    scores.append(score)
                    labels.append(check.verdict == "yes")
    steps = auc(scores, labels)
    return (
        f"one leaf is right {statistics.fmean(alone):.3f}; first lines that differ {statistics.fmean(distinct):.2f}; "
        f"judge: AUC of {len(scores):,} steps {steps or math.nan:.3f} ({statistics.fmean(labels):.2f} right), "
        f"of one question's solutions {statistics.fmean(ranks) if ranks else math.nan:.3f} ({len(ranks)} questions)"
    )


def row(strategy: str, width: int, run: Run, rebase: Run, independent: Run) -> str:
    """Return a row of the table."""
    votes, first = right(run.results), right(rebase.results)
    low, high = interval([one - other for one, other in zip(votes, first, strict=True)])
    change = statistics.fmean(votes) - statistics.fmean(first)
    held, tokens = run.mean("mean_kv_tokens"), run.mean("tokens")
    found = statistics.fmean(
        any(ballot.answer == result.question.reference for ballot in result.ballots) for result in run.results
    )
    return (
        f"| {strategy} | {statistics.fmean(votes):.3f} | {statistics.fmean(right(run.results, 'best')):.3f} "
        f"| {found:.3f} | {change:+.3f} ({low:+.3f} to {high:+.3f}) | {held:,.0f} | {run.mean('peak_kv_tokens'):,.0f} "
        f"| {rebase.mean('mean_kv_tokens') / held:.2f} | {tokens:,.0f} | {with_tokens(independent, width, tokens):.3f} "
        f"| {tokens * len(run.results) / run.seconds:,.0f} | {len(run.results) / run.seconds:.2f} |"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which models solve which questions."""
    parser.add_argument("--policy", required=True)
    parser.add_argument("--reward", required=True)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--plain", action="store_true", help="one wording for each kind of fact and question")
    parser.add_argument("--grade", type=int, default=4)
    parser.add_argument("--prompt", default="{question}", help="give an empty one for the task's own")
    parser.add_argument("--total-tokens", type=int, default=600)
    parser.add_argument("--step-tokens", type=int, default=48)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")


def main() -> None:
    """Print one table for each width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--pool", type=int, help="tokens that the KV pool holds at most: it evicts and computes again")
    parser.add_argument("--noise", type=float, default=0.0, help="deviation of an error added to the judge's logits")
    options = parser.parse_args()
    options.prompt = options.prompt or None
    with Searcher(strategy="ets", settings=settings_of(options), **limits(options)) as searcher:
        parts = searcher.load()
        if options.pool:
            pool_bytes = options.pool * parts.backend.kv_bytes_per_token
            parts = replace(parts, backend=load_backend(searcher.config.policy, pool_bytes))
        if options.noise and parts.scorer is not None:
            parts = replace(parts, scorer=Noisy(parts.scorer, options.noise))
        for width in options.widths:
            print(f"\nwidth {width}, {len(options.seeds)} x {options.questions} questions of grade {options.grade}\n")
            print(
                "| strategy | weighted | best | a leaf right | against REBASE | KV held, mean | peak "
                "| REBASE's mean / this | tokens | best-of-N with these | tokens/s | questions/s |\n"
                "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|"
            )
            runs: dict[str, Run] = {}
            for strategy in sorted({*options.strategies, "rebase", "best_of_n"}, key=order):
                print(f"{strategy} {width}", file=sys.stderr, flush=True)
                runs[strategy] = searched(parts, strategy, width, options)
                if "rebase" in runs and "best_of_n" in runs:
                    for name in list(runs) if strategy == "rebase" else [strategy]:
                        print(row(name, width, runs[name], runs["rebase"], runs["best_of_n"]), flush=True)
            print(f"\n{quality(runs['best_of_n'])}", flush=True)


def order(strategy: str) -> int:
    """Return the place of a strategy in the table."""
    return STRATEGIES.index(strategy)


if __name__ == "__main__":
    main()
