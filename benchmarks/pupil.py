"""A policy and a judge of `words` without a model, to see what strategies do in deep trees of language: no proof.

The pupil writes lines in any order and wording that is right, and errs more often with some quantities than with others
(as models do: what is hard in a problem is hard for every branch). After a mistake it goes on from the wrong value. The
judge knows the checker's verdict and errs: a part of its error belongs to the meaning of a line and is the same for all
wordings, a part to the wording.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from palmette.backends.backend import Expansion, Message, Step
from palmette.score.scorer import Candidate
from palmette.tasks.words.check import State, check_line, start
from palmette.tasks.words.mistakes import MISTAKES, mistaken_step
from palmette.tasks.words.problem import Problem, Quantity
from palmette.tasks.words.reading import read_problem
from palmette.tasks.words.solution import operands_of, step_of
from palmette.tasks.words.telling import tell_answer, tell_step
from palmette.tasks.words.vocabulary import PIECE, vocabulary

_PIECES = {piece: number for number, piece in enumerate(vocabulary())}
_END = len(_PIECES)


@dataclass(frozen=True)
class Belief:
    """What a branch has calculated, right or wrong, and what the whole came to."""

    values: dict[Quantity, int]
    result: int = 0
    asked: bool = False


@dataclass(frozen=True)
class Point:
    """Where a branch is: what it believes, None at its end, and the rest of a line that was cut."""

    belief: Belief | None
    rest: str = ""


@dataclass
class Pupil:
    """A backend that writes lines of solutions; `errs` is the mean rate of mistakes in a line.

    `alike` is how often a mistake with a quantity is the same one in all branches, from the same values.
    """

    errs: float
    alike: float = 0.7
    kv_bytes_per_token: int = 1
    context_tokens: int | None = None
    calls: int = 0
    _problems: dict[str, Problem] = field(default_factory=dict)
    _points: dict[tuple[str, tuple[int, ...]], Point] = field(default_factory=dict)
    _asked: dict[tuple[int, ...], str] = field(default_factory=dict)

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt, a token for each word, digit and sign."""
        text = messages[-1]["content"]
        tokens = tuple(_tokens(text))
        self._asked[tokens] = text
        return tokens

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Write one line for each expansion."""
        self.calls += 1
        return [self._step(expansion) for expansion in expansions]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Nothing is kept."""

    def _step(self, expansion: Expansion) -> Step:
        key = expansion.question
        if expansion.parent == 0:
            problem = self._problems.setdefault(key, read_problem(self._asked[expansion.prefix]))
            given = {fact.target: problem.values[fact.target] for fact in problem.facts if fact.kind == "given"}
            point = Point(Belief(given))
        else:
            problem, point = self._problems[key], self._points[key, expansion.prefix]
        line, after = point.rest, point.belief
        if not line:
            assert point.belief is not None
            line, after = self._line(key, problem, point.belief, random.Random(expansion.seed))
        tokens: tuple[int, ...] = (*_tokens(line), _END)
        if len(tokens) > expansion.max_tokens:
            return self._cut(expansion, line, after)
        self._points[key, (*expansion.prefix, *tokens)] = Point(after)
        if after is None:
            return Step(tokens, line, (0.0,) * len(tokens), "end")
        return Step(tokens, line + "\n", (0.0,) * len(tokens), "step")

    def _cut(self, expansion: Expansion, line: str, after: Belief | None) -> Step:
        """Return the beginning of a line for which there is no room."""
        ends = [piece.end() for piece in PIECE.finditer(line)][: expansion.max_tokens]
        begun, rest = line[: ends[-1]], line[ends[-1] :]
        tokens = tuple(_tokens(begun))
        self._points[expansion.question, (*expansion.prefix, *tokens)] = Point(after, rest or " ")
        return Step(tokens, begun, (0.0,) * len(tokens), "length")

    def _line(self, key: str, problem: Problem, belief: Belief, generator: random.Random) -> tuple[str, Belief | None]:
        """Return the next line and what is believed after it, None at the end."""
        waiting = [quantity for quantity in problem.needed if quantity not in belief.values]
        ready = [quantity for quantity in waiting if all(o in belief.values for o in operands_of(problem, quantity))]
        if not ready and (problem.ask.kind == "one" or belief.asked):
            result = belief.result if belief.asked else belief.values[problem.ask.quantities[0]]
            return tell_answer(result), None
        chosen = generator.choice(ready) if ready else None
        step = step_of(problem, chosen, belief.values)
        if generator.random() < self._rate(key, chosen):
            known = sorted(quantity for quantity in belief.values if quantity in problem.values)
            drawn = random.Random(f"{key} {chosen}") if generator.random() < self.alike else generator
            for mistake in drawn.sample(MISTAKES[:-1], len(MISTAKES) - 1):
                wrong = mistaken_step(mistake, problem, step, known, drawn)
                if wrong is not None:
                    step = wrong
                    break
        line = tell_step(generator, step)
        if chosen is None:
            return line, Belief(belief.values, step.result, True)
        return line, Belief({**belief.values, chosen: step.result}, belief.result)

    def _rate(self, key: str, quantity: Quantity | None) -> float:
        """Return how often the pupil errs with this quantity of this question: mostly seldom, sometimes often."""
        return random.Random(f"{key} {quantity}").betavariate(0.5, 0.5 * (1 - self.errs) / self.errs)


@dataclass
class Judge:
    """A scorer that sees whether a line is right, and errs: `noise` is the deviation of its error, for a signal of 1.

    A line that only goes on from an earlier mistake looks neither right nor wrong.
    """

    noise: float
    calls: int = 0
    _seen: dict[tuple[str, tuple[str, ...]], tuple[Problem, State, bool]] = field(default_factory=dict)

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return a score for each candidate."""
        self.calls += 1
        return [self._score(candidate) for candidate in candidates]

    def _score(self, candidate: Candidate) -> float:
        question, steps = candidate.messages[-1]["content"], candidate.steps
        if len(steps) == 1:
            problem = read_problem(question)
            state, right = start(problem), True
        else:
            problem, state, right = self._seen[question, steps[:-1]]
        line = steps[-1].strip()
        check, after = check_line(problem, state, line)
        follows = check.verdict == "yes"
        self._seen[question, steps] = problem, after, right and follows
        signal = 1.0 if follows else -1.0 if right else 0.0
        meaning = sorted(piece for piece in line.split() if any(map(str.isdigit, piece)))
        shared = random.Random(f"{question} {meaning}").gauss(0, 1)
        own = random.Random(f"{question} {line}").gauss(0, 1)
        return 1 / (1 + math.exp(-2 * (signal + self.noise * (0.8 * shared + 0.6 * own))))


@dataclass
class Bag:
    """An embedder that counts words and numbers."""

    name: str = "bag of words"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the counts of each text."""
        found = np.zeros((len(texts), len(_PIECES)))
        for row, text in enumerate(texts):
            for token in _tokens(text):
                found[row, token] += 1
        return found


def _tokens(text: str) -> list[int]:
    return [_PIECES[piece] for piece in PIECE.findall(text)]
