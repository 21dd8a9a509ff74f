"""What a backend and a scorer on a tree-shaped KV cache have in common: they pass it on to their model."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Mapping
from pathlib import Path

import torch

from palmette.engine.tree_model import TreeModel
from palmette.memory.oom import CacheFull


class TreeHolder:
    """Has a `tree`. Its weights can be replaced and its KV cache be given up while it is in use."""

    tree: TreeModel

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self.tree.calls

    @property
    def notices(self) -> tuple[str, ...]:
        """What is slow about the model on this machine; see `TellsNotices`."""
        return self.tree.notices

    @property
    def weight_version(self) -> int:
        """The version of the weights that computed the last results; it increases when changed ones are noticed."""
        return self.tree.weight_version

    def use_adapter(self, folder: str | None) -> None:
        """Use the adapter in this folder from the next call on; see `TreeModel.use_adapter`."""
        self.tree.use_adapter(folder)

    def update_weights(self, source: Mapping[str, torch.Tensor] | str | Path) -> None:
        """Use these weights from the next call on; see `TreeModel.update_weights`."""
        self.tree.update_weights(source)

    @property
    def cache_full(self) -> CacheFull | None:
        """Why the KV cache could not grow the last time, None if it always could."""
        return self.tree.cache.pool.cache_full

    def give_up_cache(self) -> bool:
        """Free the KV cache and halve its limit; return whether there was anything to free.

        What later calls need of it they compute again.
        """
        return self.tree.give_up_cache()
