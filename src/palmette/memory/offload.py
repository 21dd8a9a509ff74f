"""Layer-by-layer offload of a frozen model: each layer is loaded before it computes, and unloaded afterwards.

While one layer computes, the next is loaded: from pages of the model's own file, or from copies in host memory.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from palmette.errors import BackendError


class LayerLoader(Protocol):
    """Loads the weights of a layer to where it computes, and unloads them."""

    def start(self, layer: nn.Module) -> None:
        """Start to load a layer; called in a thread of its own."""

    def wait(self, layer: nn.Module) -> None:
        """Return once the layer can compute; called after `start` has returned."""

    def unload(self, layer: nn.Module) -> None:
        """Free the memory of a layer's weights. The layer can be loaded again."""


@contextmanager
def streamed(model: Any, loader: LayerLoader) -> Iterator[None]:
    """Let a causal language model run inside the block with at most two of its layers loaded; afterwards none is.

    The model's own code runs, so that its outputs are the same as with all layers loaded. The model must be frozen.
    """
    layers = layers_of(model)
    if any(weight.requires_grad for layer in layers for weight in layer.parameters()):
        raise BackendError(
            "cannot stream a model that is being trained: its weights would be lost. "
            "Freeze it first, with requires_grad_(False)"
        )
    following = dict(zip(layers, [*layers[1:], None], strict=True))
    loading: dict[nn.Module, Future[None]] = {}

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="palmette-layers") as thread:

        def start(layer: nn.Module | None) -> None:
            if layer is not None and layer not in loading:
                loading[layer] = thread.submit(loader.start, layer)

        def before(layer: nn.Module, *_: Any) -> None:
            start(layer)
            loading[layer].result()
            loader.wait(layer)
            start(following[layer])

        def after(layer: nn.Module, *_: Any) -> None:
            loading.pop(layer, None)
            loader.unload(layer)

        hooks = [layer.register_forward_pre_hook(before) for layer in layers]
        # Also after a layer that ran out of memory: it is loaded anew when the same block tries again.
        hooks += [layer.register_forward_hook(after, always_call=True) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for future in loading.values():  # After a forward pass that raised, layers may still be loading.
                future.exception()
            for part in (*layers, *_embeddings_of(model)):
                loader.unload(part)


def layers_of(model: Any) -> list[nn.Module]:
    """Return a decoder's layers in order. Raises BackendError where they are not in one ModuleList."""
    count = model.config.get_text_config().num_hidden_layers
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return list(part)
    raise BackendError(f"cannot stream a {model.config.model_type}: its {count} layers are not in one list")


def _embeddings_of(model: Any) -> list[nn.Module]:
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    return [module for module in embeddings if module is not None]
