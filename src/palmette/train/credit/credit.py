"""The credit contract: from the rewards of a tree's leaves to an advantage for each step, or for each path.

Importing a way to credit imports no torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from palmette.errors import ConfigError, PalmetteError
from palmette.own_parts import name_of, telling
from palmette.train.algorithms.algorithm import Algorithm

Unit = Literal["step", "path"]
"""What an advantage is of. step: the tokens of one node, a sample each. path: all tokens from the prompt to a leaf, a
sample for each leaf."""

Advantages = list[float | None]
"""One advantage for each node of a tree; None where nothing is to be learned: the prompt, and steps without outcome.
With the unit path only leaves have one."""


@dataclass(frozen=True)
class CreditTree:
    """A tree of steps. Node 0 is the prompt; the parent of a node has a smaller number.

    `rewards` has a reward for each leaf with an outcome, and None for all other nodes: a leaf without one was pruned
    before its outcome was known. `tokens` are each node's own. Raises PalmetteError for a tree that is none.
    """

    parents: tuple[int | None, ...]
    rewards: tuple[float | None, ...]
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.parents) == len(self.rewards) == len(self.tokens):
            raise PalmetteError("a tree needs a parent, a reward or None and a token count for each of its nodes")
        for node, parent in enumerate(self.parents):
            if (parent is None) != (node == 0) or (parent is not None and not 0 <= parent < node):
                raise PalmetteError(f"node {node} of a tree cannot have the parent {parent}")
            if parent is not None and self.rewards[parent] is not None:
                raise PalmetteError(f"node {parent} has a reward and children: only leaves have rewards")

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The leaves with an outcome."""
        return tuple(node for node, reward in enumerate(self.rewards) if reward is not None)

    @cached_property
    def alive(self) -> tuple[bool, ...]:
        """Whether each node has a leaf with an outcome below it, or is one."""
        found = [reward is not None for reward in self.rewards]
        for node in range(len(found) - 1, 0, -1):
            found[self.parent(node)] |= found[node]
        return tuple(found)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node that are alive."""
        below: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, len(self.parents)):
            if self.alive[node]:
                below[self.parent(node)].append(node)
        return tuple(map(tuple, below))

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """The first node of each node's segment.

        A segment is a chain of steps without an alternative: an only child belongs to the segment of its parent. The
        prompt is a segment of its own. Methods that branch at segments have no shorter steps than these.
        """
        found = [0]
        for node in range(1, len(self.parents)):
            parent = self.parent(node)
            continues = parent != 0 and self.children[parent] == (node,)
            found.append(found[parent] if continues else node)
        return tuple(found)

    def parent(self, node: int) -> int:
        """Return the parent of a node that is not the prompt."""
        above = self.parents[node]
        assert above is not None
        return above

    def path(self, node: int) -> list[int]:
        """Return the nodes from the prompt down to this one, both included."""
        nodes = [node]
        while nodes[-1] != 0:
            nodes.append(self.parent(nodes[-1]))
        return nodes[::-1]

    def path_tokens(self, node: int) -> int:
        """Return the number of tokens from the first step to the end of this one, without the prompt."""
        return sum(self.tokens[step] for step in self.path(node)[1:])


class CreditSettings(BaseModel):
    """Base class for the settings of a way to credit: a field is a config key `train.NAME`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Credit(ABC):
    """A way to credit the steps of trees. A subclass declares its settings in `Settings` and its `unit`."""

    Settings: ClassVar[type[CreditSettings]] = CreditSettings
    unit: ClassVar[Unit] = "step"
    settings: Any

    def __init__(self, settings: Any = None, *, algorithm: Algorithm | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.algorithm = algorithm
        """The algorithm of the run, which makes the advantages of `flat`."""

    @property
    def drops_zeros(self) -> bool:
        """Whether samples with an advantage of 0 are left out of the update."""
        return False

    @property
    def most_probability(self) -> float | None:
        """The probability from which on a token is masked: the policy is sure of it. None masks no token."""
        return None

    @abstractmethod
    def advantages(self, trees: Sequence[CreditTree]) -> list[Advantages]:
        """Return the advantages of all trees of an update, a tree for each prompt. Pure."""


def make_credit(part: Any, values: Mapping[str, Any], *, algorithm: Algorithm | None = None) -> Credit:
    """Return a way to credit with settings read from values as Python, YAML or a run's events hold them.

    Raises ConfigError for anything but a subclass of Credit, pydantic's ValidationError for values that are not as
    declared.
    """
    if not (isinstance(part, type) and issubclass(part, Credit)):
        raise ConfigError(f"credit {name_of(part)} is no subclass of palmette.train.credit.credit.Credit")
    settings = part.Settings.model_validate_json(to_json(values))
    with telling("credit", name_of(part), "its constructor", ConfigError):
        return part(settings, algorithm=algorithm)
