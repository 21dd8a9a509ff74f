"""A frozen model whose layers are fetched one by one for a forward pass, the next while one computes, then let go.

Where they come from is a mover's business: pages of the model's own file, or copies in host memory.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from palmette.errors import BackendError


class Mover(Protocol):
    """Brings the weights of a layer to where it computes, and takes them away."""

    def begin(self, layer: nn.Module) -> None:
        """Start to bring a layer; called in a thread of its own."""

    def finish(self, layer: nn.Module) -> None:
        """Return once the layer can compute; called after `begin` has returned."""

    def drop(self, layer: nn.Module) -> None:
        """Free what the layer held here. It can be brought again."""


@contextmanager
def streamed(model: Any, mover: Mover) -> Iterator[None]:
    """Hold at most two layers of a causal language model while it runs inside; outside none.

    The model's own code runs, in its own order, so its outputs are those of a model held whole. It must be frozen.
    """
    layers = layers_of(model)
    if any(weight.requires_grad for layer in layers for weight in layer.parameters()):
        raise BackendError("cannot stream a model that is trained: its weights would be lost. CacheFull it first")
    following = dict(zip(layers, [*layers[1:], None], strict=True))
    coming: dict[nn.Module, Future[None]] = {}

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="palmette-layers") as thread:

        def fetch(layer: nn.Module | None) -> None:
            if layer is not None and layer not in coming:
                coming[layer] = thread.submit(mover.begin, layer)

        def before(layer: nn.Module, *_: Any) -> None:
            fetch(layer)
            coming[layer].result()
            mover.finish(layer)
            fetch(following[layer])

        def after(layer: nn.Module, *_: Any) -> None:
            del coming[layer]
            mover.drop(layer)

        hooks = [layer.register_forward_pre_hook(before) for layer in layers]
        hooks += [layer.register_forward_hook(after) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for future in coming.values():  # A pass that raised has left some on their way.
                future.exception()
            for part in (*layers, *_ends_of(model)):
                mover.drop(part)


def layers_of(model: Any) -> list[nn.Module]:
    """Return a decoder's layers in their order; raise BackendError where they are not in one list."""
    count = model.config.get_text_config().num_hidden_layers
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return list(part)
    raise BackendError(f"cannot stream a {model.config.model_type}: its {count} layers are not in one list")


def _ends_of(model: Any) -> list[nn.Module]:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return [end for end in ends if end is not None]
