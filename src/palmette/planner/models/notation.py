"""How the tensors of a decoder family are declared as text, and the pieces that many families share.

A tensor is `name sizes bias`, tensors are separated by semicolons: `self_attn.q_proj q,h b` is a weight of q rows and
h columns, with a bias where the number b is not 0. A name that begins with `=` is the whole name of a parameter, any
other gets `.weight`. `x? name ...` is there only where the number x is not 0, `!x? name ...` only where it is 0. `[a]`
in a name stands for each of the numbers below a. Sizes are sums of products.

Numbers are read from config.json: `g: num_key_value_heads|a` is that key, or a where it is missing or null. Keys that
the file has come first, then what defaults.json says of the family, then what follows. V vocabulary, h hidden size, n
layers, a heads, g key heads, d width of a head, i feed-forward, b and c whether attention and feed-forward have biases,
t whether the head is the embedding, P positions, E experts, x experts of a token, m width of an expert, s width of the
shared experts, W sliding window, Y whether it is used; always q = a*d and k = g*d.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

BASE = {
    "V": "vocab_size", "h": "hidden_size", "n": "num_hidden_layers", "a": "num_attention_heads",
    "g": "num_key_value_heads|a", "d": "head_dim|h/a", "i": "intermediate_size", "b": "attention_bias|0",
    "c": "mlp_bias|0", "t": "tie_word_embeddings|0", "P": "max_position_embeddings|0", "W": "Y?sliding_window|0",
    "Y": "use_sliding_window|1",
}  # fmt: skip


def attention(qkv: str = "b", out: str = "b", name: str = "o_proj") -> str:
    """Return an attention of four matrices: the biases of queries, keys and values, that of the output, its name."""
    parts = f"q_proj q,h {qkv}", f"k_proj k,h {qkv}", f"v_proj k,h {qkv}", f"{name} h,q {out}"
    return ";".join(f"self_attn.{part}" for part in parts)


def gated(width: str = "i", name: str = "mlp", bias: str = "0") -> str:
    """Return a gated feed-forward of this width."""
    parts = f"gate_proj {width},h {bias}", f"up_proj {width},h {bias}", f"down_proj h,{width} {bias}"
    return ";".join(f"{name}.{part}" for part in parts)


def experts(width: str, name: str = "mlp", router: str = "gate") -> str:
    """Return a router and the experts behind it, each a gated feed-forward of this width."""
    return f"{name}.{router} E,h;={name}.experts.gate_up_proj E,2*{width},h;={name}.experts.down_proj E,h,{width}"


NORMS = "input_layernorm h;post_attention_layernorm h"
BIASED_NORMS = "input_layernorm h 1;post_attention_layernorm h 1"
FOUR_NORMS = f"{NORMS};pre_feedforward_layernorm h;post_feedforward_layernorm h"
POST_NORMS = "post_attention_layernorm h;post_feedforward_layernorm h"
HEAD_NORMS = "self_attn.q_norm d;self_attn.k_norm d"
LATENT = (
    "!u? self_attn.q_proj a*p+a*o,h;u? self_attn.q_a_proj u,h b;u? self_attn.q_a_layernorm u;"
    "u? self_attn.q_b_proj a*p+a*o,u;self_attn.kv_a_proj_with_mqa r+o,h b;self_attn.kv_a_layernorm r;"
    "self_attn.kv_b_proj a*p+a*v,r;self_attn.o_proj h,a*v b"
)
LATENT_SIZES = {
    "u": "q_lora_rank|0", "r": "kv_lora_rank", "o": "qk_rope_head_dim", "p": "qk_nope_head_dim", "v": "v_head_dim",
    "d": "v",
}  # fmt: skip
QWEN = {"Y": "use_sliding_window|0", "c": "0"}
MLP4 = "mlp.dense_h_to_4h i,h {0};mlp.dense_4h_to_h h,i {0}"


@dataclass(frozen=True)
class Family:
    """One model_type: its numbers, where they differ from BASE, and its tensors.

    `sparse` are the tensors of a layer's experts, `dense` those of a layer without; `which` says which layers are
    sparse. `window` says which layers see a window only: `all`, `every N` (all but each N-th), `after N` (all but the
    first of N), `from` (from max_window_layers on), or none but those that the config's layer_types name. `kv` is how
    many numbers a layer's KV cache has for a token.
    """

    layer: str = f"{attention()};{NORMS}"
    dense: str = gated(bias="c")
    sizes: Mapping[str, str] = field(default_factory=dict)
    outside: str = "model.embed_tokens V,h;model.norm h"
    head: str = "lm_head V,h"
    layers: str = "model.layers"
    sparse: str = ""
    which: str = "none"
    window: str = ""
    kv: str = "2*k"
    in_process: bool = True
    """Whether the engine inside this process runs it."""
