"""A transformers model run on pieces of a forest: each tick computes tokens of many nodes in one forward pass.

Shapes: P pieces, T tokens of a tick, V outputs per token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel

from palmette.engine.attention import NAME, Segment, Tick, plan, tree_attention
from palmette.engine.kv_pool import KvPool, KvShape
from palmette.engine.tree_cache import CacheNode, TreeCache
from palmette.errors import BackendError

AttentionInterface.register(NAME, tree_attention)


class Piece(NamedTuple):
    """Tokens of a node to compute, from `first` to before `last`; all before them are computed already."""

    node: CacheNode
    first: int
    last: int


class TreeModel:
    """A decoder with a tree cache in place of its own. The model's code and its settings outside a pass stay as is.

    Raises BackendError where the model cannot be run this way: checked against its plain forward pass.
    """

    def __init__(self, model: PreTrainedModel, *, budget_bytes: int | None = None) -> None:
        self._model = model
        self.cache = TreeCache(KvPool(kv_shape(model), budget_bytes))
        self._takes_logits_to_keep = "CausalLM" in type(model).__name__ or hasattr(model, "lm_head")
        self.calls = 0

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return self._model.device

    def run(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Compute all pieces; return the model's output at the last token of each, as PV in float32.

        Every node needs its slots reserved, its ancestors computed or among the pieces. A node has at most one piece.
        """
        self.calls += 1
        ordered, segments = lay_out(pieces)
        tokens = np.array([token for node, first, last in ordered for token in node.tokens[first:last]])
        slots = np.concatenate([node.slots[first:last] for node, first, last in ordered])
        positions = np.array([at for node, first, last in ordered for at in range(node.start + first, node.start + last)])
        ends = np.cumsum([last - first for _, first, last in ordered]) - 1
        place = {piece.node: int(end) for piece, end in zip(ordered, ends, strict=True)}
        last_P = torch.tensor([place[piece.node] for piece in pieces], device=self.device)
        tick = Tick(self.cache.pool, torch.from_numpy(slots).to(self.device), plan(segments, positions, self.device))
        with self._tree_attention():
            output = self._model(
                input_ids=torch.from_numpy(tokens)[None].to(self.device),
                position_ids=torch.from_numpy(positions)[None].to(self.device),
                use_cache=False,
                tick=tick,
                **({"logits_to_keep": last_P} if self._takes_logits_to_keep else {}),
            )
        for node, _, last in pieces:
            node.computed = last
        logits: torch.Tensor = output.logits[0] if self._takes_logits_to_keep else output.logits[0, last_P]
        return logits.float()

    def run_alone(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the output at the last token computed without cache, padding or neighbors, as V in float32."""
        self.calls += 1
        options: dict[str, Any] = {"logits_to_keep": 1} if self._takes_logits_to_keep else {}
        output = self._model(input_ids=torch.tensor([tokens], device=self.device), use_cache=False, **options)
        logits_V: torch.Tensor = output.logits[0, -1].float()
        return logits_V

    @contextmanager
    def _tree_attention(self) -> Iterator[None]:
        config = self._model.config
        own = config._attn_implementation
        config._attn_implementation = NAME
        try:
            yield
        finally:
            config._attn_implementation = own

    @torch.inference_mode()
    def check(self) -> None:
        """Raise BackendError unless a forked run gives what the plain forward pass gives."""
        count = int(self._model.get_input_embeddings().weight.shape[0])  # type: ignore[arg-type, union-attr]
        root = self.cache.add(None, [1 % count, 2 % count, 3 % count])
        forks = [self.cache.add(root, [4 % count]), self.cache.add(root, [5 % count, 6 % count])]
        pieces = [[Piece(root, 0, 3)], [Piece(forks[0], 0, 1), Piece(forks[1], 0, 2)]]
        calls = self.calls
        try:
            for tick in pieces:
                self.cache.reserve([(piece.node, piece.last) for piece in tick], [])
                outputs = self.run(tick)
            plain = torch.stack([self.run_alone(fork.path_tokens()) for fork in forks])
        except (ValueError, TypeError, RuntimeError, AttributeError, NotImplementedError) as error:
            raise BackendError(f"cannot keep a tree of KV for a {self._model.config.model_type}: {error}") from error
        finally:
            self.calls = calls
            for node in (*forks, root):
                self.cache.drop(node)
        tolerance = 1e-3 if self._model.dtype == torch.float32 else 0.1
        if not torch.allclose(outputs, plain, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise BackendError(
                f"cannot keep a tree of KV for a {self._model.config.model_type}: "
                "its outputs differ from those of its plain forward pass, so not all it remembers is in its attention"
            )


def lay_out(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Segment]]:
    """Order the pieces so that the readers of any node stand side by side; return the segments that they read.

    A segment is a run of nodes with the same readers.
    """
    own = {piece.node: piece for piece in pieces}
    below: dict[CacheNode, list[CacheNode]] = {}
    roots: list[CacheNode] = []
    found: list[CacheNode] = []
    for piece in pieces:
        node = piece.node
        while node not in below:
            below[node] = []
            found.append(node)
            if node.parent is None:
                roots.append(node)
                break
            node = node.parent
    for node in found:
        if node.parent is not None:
            below[node.parent].append(node)
    ordered: list[Piece] = []
    segments: list[Segment] = []
    queries = 0
    # Each entry is a node with its depth, or a place in `segments` whose readers are complete when it comes up again.
    stack: list[tuple[CacheNode | int, int]] = [(root, 0) for root in reversed(roots)]
    while stack:
        top, depth = stack.pop()
        if isinstance(top, int):
            segments[top] = segments[top]._replace(last=queries)
            continue
        slots = []
        node, position = top, top.start
        while node not in own and len(below[node]) == 1:
            slots.append(node.slots[: node.computed])
            node = below[node][0]
        piece_here = own.get(node)
        count = 0
        first = queries
        slots.append(node.slots[: node.computed if piece_here is None else piece_here.last])
        if piece_here is not None:
            ordered.append(piece_here)
            count = piece_here.last - piece_here.first
            queries += count
        joined = slots[0] if len(slots) == 1 else np.concatenate(slots)
        segments.append(Segment(joined, position, first, queries, count, depth))
        if below[node]:
            stack.append((len(segments) - 1, 0))
            stack.extend((kid, depth + 1) for kid in below[node])
    return ordered, segments


def kv_shape(model: PreTrainedModel) -> KvShape:
    """Return what the model keeps for each token. Raises BackendError where it has no attention."""
    config = model.config.get_text_config()
    if not hasattr(config, "num_attention_heads"):
        raise BackendError(f"a {config.model_type} has no attention, so no KV cache to search with")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return KvShape(int(config.num_hidden_layers), int(heads), int(width), model.dtype, model.device)
