"""The contracts of scorers, which score steps, and of embedders, which turn texts into vectors."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from palmette import registry
from palmette.backends.backend import Message
from palmette.errors import ConfigError, RunError
from palmette.memory.guard import GivesUpCache, RunPieces
from palmette.own_parts import name_of
from palmette.units import describe_error, one_line

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Candidate:
    """A question's messages and the steps of one path. The last step is the one to score.

    `finished` is True if the solution ends with that step. `question` is the question alone, without what the messages
    say about how to answer it; None where that is not known.
    """

    messages: tuple[Message, ...]
    steps: tuple[str, ...]
    finished: bool
    question: str | None = None


class Scorer(Protocol):
    """Scores the last step of a path, from 0 (certainly wrong) to 1 (certainly right)."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score in [0, 1] for each candidate, in order."""


@runtime_checkable
class PiecewiseScorer(Scorer, GivesUpCache, Protocol):
    """A scorer that supports out-of-memory retry: it scores in pieces, and its cache can be freed."""

    def score_in_pieces(self, candidates: Sequence[Candidate], run_pieces: RunPieces) -> list[float]:
        """Return the same scores as `score`; the model runs inside `run_pieces`, which may retry a failed piece."""


@runtime_checkable
class StartsScores(Scorer, Protocol):
    """A scorer that can score while its caller does something else."""

    def begin(self, candidates: Sequence[Candidate]) -> "Future[list[float]] | None":
        """Begin to score; the future has what `score` returns, and cancelling it gives the scores up.

        None, with nothing begun, where only `score` can be used.
        """

    def wait(self, begun: "Collection[Future[list[float]]]") -> None:
        """Wait until one of these is done."""


@runtime_checkable
class KeepsPaths(Protocol):
    """A scorer that keeps what it has computed for a question until the question's search has ended."""

    def forget(self, messages: Sequence[Message]) -> None:
        """Free everything that is kept for the question with these messages. Safe to call twice."""


@runtime_checkable
class ReadsPrompts(Protocol):
    """A scorer whose model has a tokenizer and a chat template of its own."""

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that the model cannot be given, before a run asks them."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    name: str

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text, in order; all of the same length."""


class FunctionScorer:
    """A plain function as a scorer, called once for each step with those of these arguments that it has parameters for.

    `messages`: the question as chat messages; `question`: the text of the last message; `steps`: the texts of all steps
    on the path; `step`: the last of them; `solution`: all steps joined; `finished`: whether the solution ends with this
    step.
    """

    def __init__(self, function: Callable[..., float]) -> None:
        self._function = function
        self.part_name = name_of(function)
        self.calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return what the function returns for each candidate, in order."""
        self.calls += len(candidates)
        return [self._score(candidate) for candidate in candidates]

    def _score(self, candidate: Candidate) -> float:
        """Call the function. Raises RunError, with the step, where it raises or returns no number."""
        try:
            return float(
                registry.call_by_name(
                    self._function,
                    messages=candidate.messages,
                    question=candidate.messages[-1]["content"],
                    steps=candidate.steps,
                    step=candidate.steps[-1],
                    solution="".join(candidate.steps),
                    finished=candidate.finished,
                )
            )
        except Exception as error:
            step = one_line(candidate.steps[-1], 80)
            raise RunError(
                f"the scorer {self.part_name} failed on the step {step!r}: {describe_error(error)}"
            ) from error


class FunctionEmbedder:
    """A plain function that takes texts and returns vectors, as an embedder."""

    def __init__(self, function: "Callable[[Sequence[str]], ArrayLike]") -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return the vectors that the function returns."""
        return self._function(texts)


def make_scorer(part: Any) -> Scorer:
    """Return an object with a method `score` as it is (its calls counted), a function as a scorer.

    Raises ConfigError for anything else.
    """
    if callable(getattr(part, "score", None)):
        return part if hasattr(part, "calls") else _Counted(part)
    if callable(part):
        return FunctionScorer(part)
    raise ConfigError(
        f"reward: a {type(part).__name__} is no scorer: give an object with a method score(candidates), or a function"
    )


def make_embedder(part: Any) -> Embedder:
    """Return an object with a method `embed` as it is, a function as an embedder.

    Raises ConfigError for anything else.
    """
    if callable(getattr(part, "embed", None)):
        if not hasattr(part, "name"):
            part.name = type(part).__name__
        return part  # type: ignore[no-any-return]  # It has the method, as checked above.
    if callable(part):
        return FunctionEmbedder(part)
    raise ConfigError(
        f"embedder: a {type(part).__name__} is no embedder: give an object with a method embed(texts), or a function"
    )


class _Counted:
    """Counts the calls of a scorer that does not count them itself."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer
        self.part_name = name_of(scorer)
        self.calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the scores of the wrapped scorer."""
        self.calls += 1
        return self._scorer.score(candidates)  # type: ignore[no-any-return]  # Checked by who asks for them.

    def forget(self, messages: Sequence[Message]) -> None:
        """Have the wrapped scorer forget a question, if it keeps any."""
        if isinstance(self._scorer, KeepsPaths):
            self._scorer.forget(messages)
