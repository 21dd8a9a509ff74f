"""The strategy contract: a strategy decides how many children each open leaf of a tree gets next."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from palmette.errors import ConfigError
from palmette.own_parts import name_of, telling
from palmette.tree import Tree

Children = dict[int, int]
"""How many children each leaf gets; a leaf without an entry gets none and is pruned."""

Use = Literal["scores", "clusters", "room"]
"""What a strategy uses: step scores (the run needs a reward model), clusters of steps with the same meaning (the run
needs an embedder), the room of a KV budget (a run whose strategy does not use it cannot set a KV budget)."""


@dataclass(frozen=True)
class Frontier:
    """The open leaves of one tree, oldest first, with one aggregated score each.

    `clusters` maps each leaf to a label; leaves with the same label have last steps of the same meaning. Empty if the
    strategy does not use clusters, or there is only one leaf.
    """

    tree: Tree
    leaves: tuple[int, ...]
    scores: tuple[float, ...]
    clusters: Mapping[int, int] = field(default_factory=dict)

    def ranked(self) -> list[tuple[int, float]]:
        """Return the leaves with their scores, best first; ties go to the older node, so that a run repeats exactly."""
        return sorted(zip(self.leaves, self.scores, strict=True), key=lambda pair: (-pair[1], pair[0]))


class StrategySettings(BaseModel):
    """Base class for the settings of a strategy: a field is a config key `search.NAME` with its default and limits."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Strategy(ABC):
    """A search method: decides, from the frontier of a tree alone, how many children each open leaf gets next.

    A subclass declares its settings in the attribute `Settings` and what it needs from the run in `uses`; config, help
    and plan read both. The first line of its docstring is shown in listings.
    """

    Settings: ClassVar[type[StrategySettings]] = StrategySettings
    settings: Any

    def __init__(self, settings: Any = None, *, width: int = 16, first_step_tokens: int = 32) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.width = width
        """The width of the run."""
        self.first_step_tokens = first_step_tokens
        """The expected length in tokens of the first step of a tree."""

    @property
    def name(self) -> str:
        """The name in error messages: that of the class."""
        return type(self).__name__

    @property
    def uses(self) -> frozenset[Use]:
        """What this strategy uses with these settings."""
        return frozenset({"scores"})

    @property
    def independent(self) -> bool:
        """Whether every open leaf below the prompt gets exactly one child, whatever the other leaves are.

        Then a branch goes on as soon as its step is done and does not wait for the others.
        """
        return False

    @abstractmethod
    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Return how many children each leaf gets in the next wave: integers that sum to at most `width`.

        Leaves without children are pruned; an empty result ends the tree. `width` is the width of the run minus the
        finished leaves, at least 1. `room` is the number of KV tokens that the tree may hold in total: prompt, paths
        and the next steps; None without a limit. The frontier is never empty.
        """


class FunctionStrategy(Strategy):
    """A plain function `allocate(frontier, width, room)` as a strategy. It sees scores if the run has a scorer."""

    def __init__(self, function: Callable[[Frontier, int, int | None], Children]) -> None:
        super().__init__()
        self._function = function

    @property
    def name(self) -> str:
        """The name in error messages: that of the function."""
        return getattr(self._function, "__name__", type(self._function).__name__)

    @property
    def uses(self) -> frozenset[Use]:
        """Nothing, so the run needs no reward model: whether the function reads scores is not known."""
        return frozenset()

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Return what the function returns."""
        return self._function(frontier, width, room)


def settings_of(part: Any) -> type[StrategySettings]:
    """Return the settings that a class declares, an empty class for a function or an object, which take none."""
    declared = getattr(part, "Settings", None) if isinstance(part, type) else None
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        return cast("type[StrategySettings]", declared)
    return StrategySettings


def read_settings(declared: type[StrategySettings], values: Mapping[str, Any]) -> StrategySettings:
    """Return a strategy's settings from values as Python, YAML or a run's events hold them: a list may be a tuple.

    Raises ValidationError for values that are not as declared, ValueError for those that JSON cannot write.
    """
    return declared.model_validate_json(to_json(values))


def make_strategy(part: Any, settings: Any, *, width: int, first_step_tokens: int) -> Strategy:
    """Return a strategy: a class built with these settings, a plain function wrapped, or a shallow copy of an object.

    The copy has the width and the first step of this run. Raises TypeError for anything else, ConfigError for a class
    that cannot be built and for a strategy that does not tell what it uses.
    """
    if isinstance(part, Strategy):
        made = copy(part)  # One object may serve several runs at once.
        vars(made).update(width=width, first_step_tokens=first_step_tokens)
    elif isinstance(part, type) and issubclass(part, Strategy):
        with telling("strategy", name_of(part), "its constructor", ConfigError):
            made = part(settings, width=width, first_step_tokens=first_step_tokens)
    elif callable(part) and not isinstance(part, type):
        made = FunctionStrategy(part)
    else:
        raise TypeError("a strategy is a subclass of palmette.Strategy or a function of frontier, width and room")
    with telling("strategy", name_of(made), "uses", ConfigError):
        frozenset(made.uses)
    with telling("strategy", name_of(made), "independent", ConfigError):
        bool(made.independent)
    return made


def summary_of(part: Any) -> str:
    """Return the first line of the docstring of a plugin."""
    return (inspect.getdoc(part) or "").partition("\n")[0]


def spread(leaves: list[int], width: int) -> Children:
    """Share `width` children evenly among leaves; the remainder goes to the first ones, one each."""
    each, rest = divmod(width, len(leaves))
    shares = {leaf: each + (place < rest) for place, leaf in enumerate(leaves)}
    return {leaf: count for leaf, count in shares.items() if count}
