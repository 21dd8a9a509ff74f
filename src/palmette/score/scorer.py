"""The contracts of who scores a step and of who embeds a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from palmette import registry
from palmette.backends.backend import Message
from palmette.errors import ConfigError
from palmette.memory.guard import GivesUpCache, RunPieces

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Candidate:
    """A question's messages with the steps taken so far; the last one is to be scored."""

    messages: tuple[Message, ...]
    steps: tuple[str, ...]
    finished: bool


class Scorer(Protocol):
    """Scores last steps: 0 surely wrong, 1 surely right."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score in [0, 1] for each candidate, in order."""


@runtime_checkable
class PiecewiseScorer(Scorer, GivesUpCache, Protocol):
    """A scorer inside the process, whose memory can run out: it scores in pieces, and what it keeps can be given up."""

    def score_in_pieces(self, candidates: Sequence[Candidate], run_pieces: RunPieces) -> list[float]:
        """Return the same scores, with work handed to `run_pieces`; a piece that fails can be worked on again."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    name: str

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return one vector for each text, in order."""


class FunctionScorer:
    """A plain function as a scorer: it is called for each step with those of the arguments below that it names.

    `messages` are the question's, `question` is the last one's text, `steps` all steps so far, `step` the last one,
    `solution` their text in one, `finished` whether the solution ends with it.
    """

    def __init__(self, function: Callable[..., float]) -> None:
        self._function = function
        self.calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Call the function once for each candidate."""
        self.calls += len(candidates)
        return [
            float(
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
            for candidate in candidates
        ]


class FunctionEmbedder:
    """A plain function from texts to vectors as an embedder."""

    def __init__(self, function: "Callable[[Sequence[str]], ArrayLike]") -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def embed(self, texts: Sequence[str]) -> "ArrayLike":
        """Return what the function returns."""
        return self._function(texts)


def make_scorer(part: Any) -> Scorer:
    """Return the scorer that an object or a plain function stands for; raise ConfigError where it is none."""
    if callable(getattr(part, "score", None)):
        return part if hasattr(part, "calls") else _Counted(part)
    if callable(part):
        return FunctionScorer(part)
    raise ConfigError(
        f"reward: a {type(part).__name__} is no scorer: give it a method score(candidates), or a function"
    )


def make_embedder(part: Any) -> Embedder:
    """Return the embedder that an object or a plain function stands for; raise ConfigError where it is none."""
    if callable(getattr(part, "embed", None)):
        if not hasattr(part, "name"):
            part.name = type(part).__name__
        return part  # type: ignore[no-any-return]  # Checked just now.
    if callable(part):
        return FunctionEmbedder(part)
    raise ConfigError(f"embedder: a {type(part).__name__} is no embedder: give it a method embed(texts), or a function")


class _Counted:
    """A scorer that does not count its calls, with a count of them."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer
        self.calls = 0

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the scorer's scores."""
        self.calls += 1
        return [float(score) for score in self._scorer.score(candidates)]
