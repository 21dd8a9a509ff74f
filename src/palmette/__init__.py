"""Search and training of reasoning models in the memory you have.

The names below are loaded when they are first used: importing palmette does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palmette.api import MemoryPlan, Outcome, Progress, Searcher, grade, load_task, plan
    from palmette.backends.backend import Backend, Expansion, Step
    from palmette.errors import BackendError, BudgetError, ConfigError, PalmetteError, RunError
    from palmette.score.judge import Judge, Verdict
    from palmette.score.scorer import Candidate, Embedder, Scorer
    from palmette.search.result import SearchResult
    from palmette.strategy import Children, Frontier, Strategy, StrategySettings
    from palmette.tasks.task import Question, Task
    from palmette.trainings import Trained, sft, train_policy, train_prm
    from palmette.tree import Node, Tree

__version__ = "0.1.0"

_PLACES = {
    "palmette.api": ("MemoryPlan", "Outcome", "Progress", "Searcher", "grade", "load_task", "plan"),
    "palmette.backends.backend": ("Backend", "Expansion", "Step"),
    "palmette.errors": ("BackendError", "BudgetError", "ConfigError", "PalmetteError", "RunError"),
    "palmette.score.judge": ("Judge", "Verdict"),
    "palmette.score.scorer": ("Candidate", "Embedder", "Scorer"),
    "palmette.search.result": ("SearchResult",),
    "palmette.strategy": ("Children", "Frontier", "Strategy", "StrategySettings"),
    "palmette.tasks.task": ("Question", "Task"),
    "palmette.trainings": ("Trained", "sft", "train_policy", "train_prm"),
    "palmette.tree": ("Node", "Tree"),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "Backend",
    "BackendError",
    "BudgetError",
    "Candidate",
    "Children",
    "ConfigError",
    "Embedder",
    "Expansion",
    "Frontier",
    "Judge",
    "MemoryPlan",
    "Node",
    "Outcome",
    "PalmetteError",
    "Progress",
    "Question",
    "RunError",
    "Scorer",
    "SearchResult",
    "Searcher",
    "Step",
    "Strategy",
    "StrategySettings",
    "Task",
    "Trained",
    "Tree",
    "Verdict",
    "grade",
    "load_task",
    "plan",
    "sft",
    "train_policy",
    "train_prm",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'palmette' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
