"""The strategy contract: how many children each open leaf of a tree gets next."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from palmette.tree import Tree

Children = dict[int, int]
"""How many children each node gets; a node that is not named gets none."""

Use = Literal["scores", "clusters", "room"]
"""What a strategy decides by: step scores (needs a reward model), clusters of steps that say the same (needs an
embedder), and the room that a KV budget leaves the tree (without it no budget can be set)."""


@dataclass(frozen=True)
class Frontier:
    """The open leaves of one tree, oldest first, with one aggregated score each.

    `clusters` gives leaves whose last steps say the same the same label; empty where the strategy does not use them.
    """

    tree: Tree
    leaves: tuple[int, ...]
    scores: tuple[float, ...]
    clusters: Mapping[int, int] = field(default_factory=dict)

    def ranked(self) -> list[tuple[int, float]]:
        """Return leaves with their scores, best first; ties go to the older node, so that a run repeats exactly."""
        return sorted(zip(self.leaves, self.scores, strict=True), key=lambda pair: (-pair[1], pair[0]))


class StrategySettings(BaseModel):
    """Base of a strategy's own settings: each field is a key of `search.`, its default and limits included."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Strategy(ABC):
    """A way to grow a tree: a pure function of a frontier, with its settings filled in.

    A subclass declares its own settings as a class `Settings` inside it and what it decides by in `uses`; config, help,
    plan, sweep and docs read both. The first line of its docstring is what listings show.
    """

    Settings: ClassVar[type[StrategySettings]] = StrategySettings
    settings: Any

    def __init__(self, settings: Any = None, *, width: int = 16, first_step_tokens: int = 32) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.width = width
        """The width of the run."""
        self.first_step_tokens = first_step_tokens
        """How long the first steps of a tree are expected to be."""

    @property
    def name(self) -> str:
        """What messages call it: the name of its class."""
        return type(self).__name__

    @property
    def uses(self) -> frozenset[Use]:
        """What this strategy decides by, with these settings."""
        return frozenset({"scores"})

    @abstractmethod
    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Return the children of each leaf; they sum to at most `width`, and none at all ends the tree.

        `width` is what finished leaves have left of the run's width, at least 1. `room` is the number of KV tokens that
        the tree may hold in all: prompt, paths and steps to come; None without a limit. The frontier is never empty.
        """


class FunctionStrategy(Strategy):
    """A plain function `allocate(frontier, width, room)` as a strategy; it may use scores if there are any."""

    def __init__(self, function: Callable[[Frontier, int, int | None], Children]) -> None:
        super().__init__()
        self._function = function

    @property
    def name(self) -> str:
        """The function's own name."""
        return getattr(self._function, "__name__", type(self._function).__name__)

    @property
    def uses(self) -> frozenset[Use]:
        """Nothing is required of a run: whether the function looks at scores is not known."""
        return frozenset()

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Return what the function returns."""
        return self._function(frontier, width, room)


def settings_of(part: Any) -> type[StrategySettings]:
    """Return the settings that a strategy declares; a plain function or a finished object has none to set."""
    return part.Settings if isinstance(part, type) and issubclass(part, Strategy) else StrategySettings


def make_strategy(part: Any, settings: Any, *, width: int, first_step_tokens: int) -> Strategy:
    """Return the strategy that a part stands for: an object as it is, a class with its settings, a plain function.

    Raises TypeError where it is none of them.
    """
    if isinstance(part, Strategy):
        return part
    if isinstance(part, type) and issubclass(part, Strategy):
        return part(settings, width=width, first_step_tokens=first_step_tokens)
    if callable(part) and not isinstance(part, type):
        return FunctionStrategy(part)
    raise TypeError("a strategy is a subclass of palmette.Strategy or a function of frontier, width and room")


def summary_of(part: Any) -> str:
    """Return the first line of a part's docstring."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def spread(leaves: list[int], width: int) -> Children:
    """Share `width` evenly; what does not divide goes to the leaves named first."""
    each, rest = divmod(width, len(leaves))
    shares = {leaf: each + (place < rest) for place, leaf in enumerate(leaves)}
    return {leaf: count for leaf, count in shares.items() if count}
