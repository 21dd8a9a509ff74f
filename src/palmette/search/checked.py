"""Calls the parts of a search, which may be the user's own, and checks everything that they return.

What passes here can be written as events and read again: numbers are plain and finite, texts are texts. Errors name the
part, what it returned and what is expected; those that a part raises are chained.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NoReturn, get_args

from palmette.backends.backend import Backend, Expansion, Finish, Interruptible, StartsSteps, Step
from palmette.errors import BackendError, ConfigError, RunError
from palmette.own_parts import finite_number, name_of, shown, telling, whole_number
from palmette.score.judge import Judge, Verdict
from palmette.score.scorer import Candidate, KeepsPaths, Scorer, StartsScores
from palmette.strategy import Children, Frontier, Strategy
from palmette.tasks.task import Question
from palmette.units import one_line

_FINISHES = get_args(Finish)
_MOST_LOGPROB = 1e-3
"""Rounding may lift the log-probability of a certain token above 0."""


def prompt_of(backend: Backend, question: Question) -> tuple[int, ...]:
    """Return the prompt's tokens. Raises ConfigError for an empty prompt, BackendError for what are no tokens."""
    with telling("backend", name_of(backend), "encode", BackendError):
        tokens: Any = backend.encode(question.messages)
        prompt = _tokens(tokens)
    if prompt is None:
        _refuse_backend(backend, f"encode returned {shown(tokens)}", "a tuple of token ids")
    if not prompt:
        raise ConfigError(f"question {one_line(question.id, 80)} has an empty prompt: check task.prompt")
    return prompt


class Flight:
    """The steps that are asked of a backend, each by its question and its handle, until they are generated.

    Raises BackendError where the backend fails or returns what its contract rules out.
    """

    def __init__(self, backend: StartsSteps) -> None:
        self._backend = backend
        self._asked: dict[tuple[str, int | None], Expansion] = {}
        self._was_interrupted = False

    def __bool__(self) -> bool:
        """Return whether steps are in flight."""
        return bool(self._asked)

    def interrupt(self) -> None:
        """Have a `finished` that waits, or else the next one, return soon, where the backend can; from any thread."""
        if isinstance(self._backend, Interruptible):
            self._was_interrupted = True  # For good: how many returns without a step follow is not known.
            self._backend.interrupt()

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Have the backend start these steps."""
        if not expansions:
            return
        self._asked.update(((expansion.question, expansion.node), expansion) for expansion in expansions)
        with telling("backend", name_of(self._backend), "start", BackendError):
            self._backend.start(expansions)

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Wait for steps; return those that are done, each with its expansion and once; none if interrupted."""
        with telling("backend", name_of(self._backend), "finished", BackendError):
            done: list[Any] = list(self._backend.finished())
        if not done and not self._was_interrupted:
            told = f"finished returned no step, with {len(self._asked)} in flight"
            _refuse_backend(self._backend, told, "one step or more")
        return [self._landed(pair) for pair in done]

    def release(self, question: Question, nodes: Sequence[int]) -> None:
        """Have the backend free what it keeps for these nodes, and give up steps in flight for them."""
        for node in nodes:
            self._asked.pop((question.id, node), None)
        with telling("backend", name_of(self._backend), "release", BackendError):
            self._backend.release(question.id, nodes)

    def _landed(self, pair: Any) -> tuple[Expansion, Step]:
        expansion, step = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(expansion, Expansion):
            _refuse_backend(self._backend, f"finished returned {shown(pair)}", "pairs of an expansion and its step")
        asked = self._asked.pop((expansion.question, expansion.node), None)
        if asked is None:
            told = f"finished returned a step of node {expansion.node} of question {one_line(expansion.question, 80)}"
            _refuse_backend(self._backend, told, "each step that was started, once")
        return asked, _step(self._backend, step, asked)


def kv_bytes_per_token(backend: Backend) -> int:
    """Return the bytes of a token in the backend's KV cache. Raises BackendError unless it is 1 or more."""
    with telling("backend", name_of(backend), "kv_bytes_per_token", BackendError):
        told: Any = backend.kv_bytes_per_token
    return _at_least_1(backend, "kv_bytes_per_token", told, "a whole number of bytes, 1 or more")


def context_tokens(backend: Backend) -> int | None:
    """Return the tokens that the backend takes, None without a limit. Raises BackendError for anything else."""
    with telling("backend", name_of(backend), "context_tokens", BackendError):
        told: Any = backend.context_tokens
    if told is None:
        return None
    return _at_least_1(backend, "context_tokens", told, "a whole number of tokens, 1 or more, or None")


def calls_of(kind: str, part: Any) -> int:
    """Return how many calls a backend or a scorer has counted. Raises BackendError where that is no whole number."""
    with telling(kind, name_of(part), "calls", BackendError):
        told = part.calls
    try:
        return whole_number(told)
    except ValueError:
        raise BackendError(f"{kind} {name_of(part)}: calls is {shown(told)}: expected a whole number") from None


def begin_scores(scorer: Scorer, candidates: Sequence[Candidate]) -> "Future[list[float]] | None":
    """Have the scorer begin; None where it scores only while it is waited for."""
    if not isinstance(scorer, StartsScores):
        return None
    with telling("scorer", name_of(scorer), "begin", BackendError):
        return scorer.begin(candidates)


def wait_for_scores(scorer: StartsScores, begun: "Collection[Future[list[float]]]") -> None:
    """Wait until one of those that have begun is done."""
    with telling("scorer", name_of(scorer), "wait", BackendError):
        scorer.wait(begun)


def scores_of(
    scorer: Scorer, candidates: Sequence[Candidate], begun: "Future[list[float]] | None" = None
) -> list[float]:
    """Return one score for each candidate, of `begun` where that is given, which is done.

    Raises BackendError for anything but a number from 0 to 1.
    """
    name = name_of(scorer)
    with telling("scorer", name, "score", BackendError):
        found: list[Any] = list(scorer.score(candidates) if begun is None else begun.result())
    if len(found) != len(candidates):
        raise BackendError(
            f"scorer {name} returned {len(found)} scores for {len(candidates)} steps: it has to give one each"
        )
    return [_score(name, score, candidate) for score, candidate in zip(found, candidates, strict=True)]


def forget(scorer: Scorer | None, question: Question) -> None:
    """Have the scorer free what it keeps for a question. Raises BackendError where it fails."""
    part: object = scorer
    if isinstance(part, KeepsPaths):
        with telling("scorer", name_of(part), "forget", BackendError):
            part.forget(question.messages)


def children_of(strategy: Strategy, frontier: Frontier, width: int, room: int | None) -> Children:
    """Return the children that a strategy grants, without zeros. Raises ConfigError where they break its contract."""
    name = strategy.name
    with telling("strategy", name, "allocate", RunError):
        children: Any = strategy.allocate(frontier, width, room)
        items = list(children.items()) if isinstance(children, Mapping) else None
    if items is None:
        raise ConfigError(f"strategy {name} returned a {type(children).__name__}, not children by leaf")
    leaves = set(frontier.leaves)
    granted: Children = {}
    for given, count in items:
        try:
            leaf = whole_number(given)
        except ValueError:
            leaf = -1
        if leaf not in leaves:
            raise ConfigError(f"strategy {name} gave children to node {given!r}, which is not one of the open leaves")
        try:
            granted[leaf] = whole_number(int(count) if isinstance(count, bool) else count)
        except ValueError:
            granted[leaf] = -1
        if granted[leaf] < 0:
            raise ConfigError(f"strategy {name} gave {count!r} children to node {leaf}: give whole numbers")
    granted = {leaf: count for leaf, count in granted.items() if count}
    if sum(granted.values()) > width:
        raise ConfigError(
            f"strategy {name} gave {sum(granted.values())} children, but the width has {width} left: allocate "
            f"has to return numbers that sum to at most its argument width"
        )
    return granted


class CheckedJudge:
    """A judge that calls another one. Raises RunError where that one fails or returns what its contract rules out."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._name = name_of(judge)
        self.by_answer = bool(judge.by_answer)

    def extract(self, solution: str) -> str | None:
        """Return the final answer of a solution, or None if it has none."""
        with telling("judge", self._name, "extract", RunError):
            answer: Any = self._judge.extract(solution)
        if answer is not None and not isinstance(answer, str):
            self._refuse("extract", answer, "a text, or None")
        return answer

    def canonical(self, answer: str) -> str:
        """Return the normal form of an answer."""
        with telling("judge", self._name, "canonical", RunError):
            form: Any = self._judge.canonical(answer)
        if not isinstance(form, str):
            self._refuse("canonical", form, "a text")
        return form

    def verdict(self, question: Question, solution: str, answer: str | None) -> Verdict:
        """Return the verdict on one solution, with a plain finite reward."""
        with telling("judge", self._name, f"verdict on question {one_line(question.id, 80)}", RunError):
            verdict: Any = self._judge.verdict(question, solution, answer)
        if not isinstance(verdict, Verdict):
            self._refuse("verdict", verdict, "a palmette.Verdict")
        if verdict.outcome is not None and not isinstance(verdict.outcome, str):
            self._refuse("verdict", verdict.outcome, "a text as outcome, or None")
        if verdict.reward is None:
            return verdict
        try:
            return replace(verdict, reward=finite_number(verdict.reward))
        except ValueError:
            self._refuse("verdict", verdict.reward, "a finite number as reward, or None")

    def _refuse(self, method: str, returned: Any, expected: str) -> NoReturn:
        raise RunError(f"judge {self._name}: {method} returned {shown(returned)}: expected {expected}")


def _tokens(values: Any) -> tuple[int, ...] | None:
    """Return token ids as plain integers, None where they are none."""
    if not isinstance(values, Iterable):
        return None
    try:
        tokens = tuple(value if type(value) is int else whole_number(value) for value in values)
    except ValueError:
        return None
    return tokens if not tokens or 0 <= min(tokens) <= max(tokens) < 2**63 else None


def _numbers(values: Any) -> tuple[float, ...] | None:
    """Return finite numbers as plain floats, None where one is none."""
    try:
        return tuple(finite_number(value) for value in values) if isinstance(values, Iterable) else None
    except ValueError:
        return None


def _step(backend: Backend, step: Any, asked: Expansion) -> Step:
    if not isinstance(step, Step):
        _refuse_backend(backend, f"a step is {shown(step)}", "a palmette.Step")
    tokens, logprobs = _tokens(step.tokens), _numbers(step.logprobs)
    if tokens is None:
        _refuse_backend(backend, f"a step has tokens {shown(step.tokens)}", "token ids, 0 or more")
    if logprobs is None:
        _refuse_backend(backend, f"a step has logprobs {shown(step.logprobs)}", "finite numbers")
    if len(logprobs) != len(tokens):
        told = f"a step has {len(tokens)} tokens and {len(logprobs)} logprobs"
        _refuse_backend(backend, told, "one log-probability for each token")
    if len(tokens) > asked.max_tokens:
        _refuse_backend(backend, f"a step has {len(tokens)} tokens", f"at most max_tokens, {asked.max_tokens}")
    if logprobs and max(logprobs) > _MOST_LOGPROB:
        _refuse_backend(backend, f"a step has a log-probability of {max(logprobs)}", "0 or less")
    if not isinstance(step.text, str):
        _refuse_backend(backend, f"a step has text {shown(step.text)}", "a text")
    if step.finish not in _FINISHES:
        _refuse_backend(backend, f"a step has finish {shown(step.finish)}", f"one of {', '.join(_FINISHES)}")
    try:
        temperature = finite_number(step.temperature)
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= 1e18:
        _refuse_backend(backend, f"a step has temperature {shown(step.temperature)}", "a number, 0 or more")
    return Step(tokens, step.text, logprobs, step.finish, temperature)


def _score(name: str, score: Any, candidate: Candidate) -> float:
    try:
        number = finite_number(score)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise BackendError(
            f"scorer {name}: a step was scored {shown(score)}, and scores lie in 0 to 1: the scorer is wrong, or the "
            f"weights of its reward model are damaged. The step: {candidate.steps[-1][:60]!r}"
        )
    return number


def _at_least_1(backend: Backend, field: str, told: Any, expected: str) -> int:
    try:
        number = whole_number(told)
    except ValueError:
        number = 0
    if number < 1:
        _refuse_backend(backend, f"{field} is {shown(told)}", expected)
    return number


def _refuse_backend(backend: Backend, told: str, expected: str) -> NoReturn:
    raise BackendError(f"backend {name_of(backend)}: {told}: expected {expected}")
