"""Searches of `words` by models for the benchmarks: what is kept of each answer, and a file from which they go on."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.pupil_search import interval, parsed, with_settings
from palmette import Searcher, SearchResult, load_task
from palmette.run.parts import Parts
from palmette.search.answer import Ballot
from palmette.tasks.task import Task
from palmette.tasks.words.check import check_solution
from palmette.tasks.words.reading import read_problem


@dataclass(frozen=True)
class Answered:
    """What is kept of the search of one question.

    `right` has the votes that elect the reference; `leaves` counts those that were not pruned, `distinct` is the share
    of their first lines that differ. `steps` are those of two leaves, as scores and whether the checker says that they
    follow and are new. `seconds` are those since the answer before, so that they add up.
    """

    question: str
    reference: str
    right: tuple[str, ...]
    ballots: tuple[Ballot, ...]
    leaves: int
    distinct: float
    steps: tuple[tuple[float, bool], ...]
    tokens: int
    held: float
    peak: int
    seconds: float

    @property
    def verdicts(self) -> list[bool]:
        """Whether each ballot has the right answer."""
        return [ballot.answer == self.reference for ballot in self.ballots]


@dataclass(frozen=True)
class Run:
    """The answers of a strategy."""

    answers: list[Answered]

    @property
    def seconds(self) -> float:
        """Seconds that all questions took together."""
        return sum(answered.seconds for answered in self.answers)

    def mean(self, name: str) -> float:
        """Return the mean of an attribute."""
        return statistics.fmean(getattr(answered, name) for answered in self.answers)

    def right(self, vote: str = "weighted") -> list[int]:
        """Return 1 for each question that a vote answers right, else 0."""
        return [int(vote in answered.right) for answered in self.answers]

    def against(self, other: "Run") -> str:
        """Return the difference of the weighted votes over the same questions, with its interval."""
        differences = [one - its for one, its in zip(self.right(), other.right(), strict=True)]
        low, high = interval(differences)
        return f"{statistics.fmean(differences):+.3f} ({low:+.3f} to {high:+.3f})"


ASKED = ("policy", "reward", "plain", "grade", "prompt", "total_tokens", "step_tokens", "set", "noise", "pool")
"""The options on which an answer depends, but for strategy, width and seed, which are in a file's name."""


def open_runs(options: argparse.Namespace, names: Sequence[str] = ASKED) -> None:
    """Make the folder of `--runs`, or end the program if its answers were given with other options."""
    asked = {name: getattr(options, name, None) for name in names}
    options.runs.mkdir(parents=True, exist_ok=True)
    path = options.runs / "asked.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if other := [name for name in names if before.get(name) != asked[name]]:
            told = ", ".join(f"--{name.replace('_', '-')} {before.get(name)}, not {asked[name]}" for name in other)
            raise SystemExit(f"{options.runs} has answers with {told}. Give another folder, or the same options.")
    path.write_text(json.dumps(asked), encoding="utf-8")


def searched(load: Callable[[], Parts], strategy: str, width: int, options: argparse.Namespace) -> Run:
    """Search the questions of all seeds; with `--runs` those that a file there does not have yet.

    Behind its name a strategy may have settings of its own: `ets:lambda_diversity=0,lambda_kv=2`.
    """
    answers: list[Answered] = []
    for seed in options.seeds:
        task = questions(seed, options)
        path = options.runs and options.runs / f"{strategy}-{width}-{seed}.jsonl"
        known = {answered.question: answered for answered in _stored(path)}
        left = [question for question in task.questions if question.id not in known]
        if left:
            if path and path.exists():
                os.truncate(path, len(_whole_lines(path)))
            for answered in _searched(load(), strategy, width, seed, replace(task, questions=tuple(left)), options):
                known[answered.question] = answered
                if path:
                    with path.open("a", encoding="utf-8") as file:
                        print(json.dumps(asdict(answered)), file=file)
        answers += [known[question.id] for question in task.questions]
    return Run(answers)


def _searched(
    parts: Parts, strategy: str, width: int, seed: int, task: Task, options: argparse.Namespace
) -> Iterator[Answered]:
    name, own = with_settings(strategy)
    given = {**settings_of(options), **own}
    with Searcher(strategy=name, seed=seed, width=width, settings=given, parts=parts, **limits(options)) as searcher:
        began = time.perf_counter()
        for result in searcher.stream(task):
            now = time.perf_counter()
            yield kept(result, now - began)
            began = now


def kept(result: SearchResult, seconds: float) -> Answered:
    """Return what is kept of a result."""
    problem = read_problem(result.question.messages[-1]["content"].split("\n")[0])
    paths = [result.tree.steps(leaf.id) for leaf in result.leaves]
    steps: list[tuple[float, bool]] = []
    for path in paths[:2]:
        checks = check_solution(problem, "".join(step.text for step in path))
        scores = line_scores([(step.text, step.score) for step in path])
        steps += [(score, check.advances) for check, score in zip(checks, scores, strict=False) if score is not None]
    return Answered(
        question=result.question.id,
        reference=str(result.question.reference),
        right=tuple(vote for vote, choice in result.choices.items() if choice.outcome == "correct"),
        ballots=result.ballots,
        leaves=len(paths),
        distinct=len({path[0].text for path in paths}) / len(paths) if paths else 0.0,
        steps=tuple(steps),
        tokens=result.tokens,
        held=result.mean_kv_tokens,
        peak=result.peak_kv_tokens,
        seconds=seconds,
    )


def line_scores(steps: Sequence[tuple[str, float | None]]) -> list[float | None]:
    """Return the score of every line that is not blank: of the step in which it ends, where steps were cut."""
    found: list[float | None] = []
    line = ""
    for text, score in steps:
        *ended, line = (line + text).split("\n")
        found += [score for told in ended if told.strip()]
    return [*found, steps[-1][1]] if line.strip() else found


def _stored(path: Path | None) -> Iterator[Answered]:
    if path is None or not path.exists():
        return
    for number, line in enumerate(_whole_lines(path).split(b"\n")[:-1], 1):
        try:
            fields = json.loads(line)
            ballots = tuple(Ballot(**ballot) for ballot in fields.pop("ballots"))
            steps = tuple((score, label) for score, label in fields.pop("steps"))
            yield Answered(**{**fields, "ballots": ballots, "steps": steps, "right": tuple(fields["right"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(
                f"{path}, line {number} is no answer: {error}. Remove it, its question is asked again."
            ) from None


def _whole_lines(path: Path) -> bytes:
    """Return what a file has without the half line that a process which was killed may have left."""
    told = path.read_bytes()
    return told[: told.rfind(b"\n") + 1]


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given by `--set`, over those of the models."""
    named = {"policy.model": options.policy, "reward.model": options.reward, "task.name": "words"}
    return {**named, **parsed(options.set)}


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which models solve which questions."""
    parser.add_argument("--policy", required=True)
    parser.add_argument("--reward", required=True)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--plain", action="store_true", help="one wording for each kind of fact and question")
    parser.add_argument("--grade", type=int, default=4)
    parser.add_argument(
        "--prompt",
        type=lambda text: text or None,
        default="{question}",
        help="'': the task's own, with its instruction",
    )
    parser.add_argument("--total-tokens", type=int, default=600)
    parser.add_argument("--step-tokens", type=int, default=48, help="longer steps are cut")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=Path, help="folder of answers: the same command goes on behind the last one")
