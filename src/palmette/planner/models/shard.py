"""A model cut for tensor parallelism: what one of several GPUs holds of it, as SGLang and vLLM cut it."""

import math
from dataclasses import replace

from palmette.planner.models.shape import Linear, ModelShape

_KEYS = ("k_proj", "v_proj")
_ROWS = ("o_proj", "down_proj", "dense", "out_proj", "c_proj", "fc2", "dense_4h_to_h", "output_linear")
"""Layers that are cut along their inputs; all others are cut along their outputs."""
_WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate")
"""Layers of which every GPU has all: latent vectors serve all heads."""
_VOCABULARY_MULTIPLE = 64
"""Servers pad the vocabulary to a multiple of this for each GPU."""


def can_shard(shape: ModelShape, shards: int) -> bool:
    """Return whether both servers can cut a model for so many GPUs: heads, feed-forwards and blocks of scales."""
    if shards == 1:
        return True
    heads = shape.heads % shards == 0 and (shape.kv_heads % shards == 0 or shards % shape.kv_heads == 0)
    stored = shape.stored
    unit = max(1, stored.group, *(stored.block or ())) if stored is not None else 1
    rows = [own.inputs for own in shape.linear if _tail(own) in ("down_proj", "fc2")]
    return heads and all(inputs % (shards * unit) == 0 for inputs in rows)


def shard(shape: ModelShape, shards: int) -> ModelShape:
    """Return what one of so many GPUs holds: heads and feed-forwards cut, norms and routers whole.

    With fewer key heads than GPUs each has one; a latent KV cache is whole on every GPU.
    """
    if shards == 1:
        return shape
    linear = tuple(_sharded(own, shape, shards) for own in shape.linear)
    parts = dict(shape.parts)
    for own, cut in zip(shape.linear, linear, strict=True):
        kind = "attention" if "attn" in own.name or "attention" in own.name else "mlp"
        parts[kind] -= own.parameters - cut.parameters
    rows = math.ceil(shape.vocabulary / (shards * _VOCABULARY_MULTIPLE)) * _VOCABULARY_MULTIPLE
    for kind in ("embedding", "head"):
        if parts.get(kind, 0) >= shape.vocabulary * shape.hidden:
            parts[kind] -= (shape.vocabulary - rows) * shape.hidden
    kv_heads = max(1, shape.kv_heads // shards)
    kept = shape.kv_heads if shape.is_latent else kv_heads
    return replace(
        shape,
        heads=shape.heads // shards,
        kv_heads=kv_heads,
        intermediate=math.ceil(shape.intermediate / shards),
        parts=parts,
        linear=linear,
        kv=tuple(replace(own, numbers=own.numbers * kept // shape.kv_heads) for own in shape.kv),
    )


def _sharded(own: Linear, shape: ModelShape, shards: int) -> Linear:
    tail = _tail(own)
    if tail in _WHOLE:
        return own
    if tail in _KEYS and "attn" in own.name:
        return replace(own, outputs=own.outputs * max(1, shape.kv_heads // shards) // shape.kv_heads)
    if tail in _ROWS:
        return replace(own, inputs=math.ceil(own.inputs / shards))
    return replace(own, outputs=math.ceil(own.outputs / shards))


def _tail(own: Linear) -> str:
    return own.name.rpartition(".")[2]
