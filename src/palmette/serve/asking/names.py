"""The names of models: the policy's own for plain generation, with a strategy behind a colon for a search."""

import os
from collections.abc import Sequence
from pathlib import PurePath

from palmette.serve.refusals import ApiError
from palmette.units import nearest, one_line


def shown_name(model: str) -> str:
    """Return what clients call a policy: its name, of a folder only the last part."""
    name = PurePath(os.path.expanduser(model)).name if os.path.exists(os.path.expanduser(model)) else model
    return name.replace(":", "-") or "model"


class ModelNames:
    """All names that a request may give as its model."""

    def __init__(self, policy: str, strategies: Sequence[str]) -> None:
        self.policy = policy
        self._strategies = tuple(strategies)

    def all(self) -> list[str]:
        """Return every name, the policy's own first."""
        return [self.policy, *(f"{self.policy}:{strategy.replace('_', '-')}" for strategy in self._strategies)]

    def strategy_of(self, model: str) -> str | None:
        """Return the strategy of a name, None for the policy's own. Raises ApiError 404 for any other name."""
        if model == self.policy:
            return None
        policy, _, alias = model.rpartition(":")
        strategy = alias.replace("-", "_")
        if policy != self.policy or strategy not in self._strategies:
            near = nearest(model, self.all())
            hint = f"Did you mean {near}?" if near else f"There are: {', '.join(self.all())}"
            raise ApiError(404, f"no model {one_line(model, 120)!r}. {hint}", "model", "model_not_found")
        return strategy
