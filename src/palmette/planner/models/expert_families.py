"""The tensors of decoder families with experts, declared as notation.py says."""

from palmette.planner.models.notation import (
    BIASED_NORMS,
    HEAD_NORMS,
    LATENT,
    LATENT_SIZES,
    NORMS,
    POST_NORMS,
    QWEN,
    Family,
    attention,
    experts,
    gated,
)

MOE_SIZES = {"E": "num_experts|num_local_experts", "x": "num_experts_per_tok"}
SHARED_SIZES = {
    "E": "n_routed_experts", "x": "num_experts_per_tok|1", "m": "moe_intermediate_size",
    "S": "n_shared_experts|0", "s": "S*m",
}  # fmt: skip
SHARED = f"{experts('m')};{gated('s', 'mlp.shared_experts', 'c')}"


EXPERT_FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(
        f"{LATENT};{NORMS}", sizes={**LATENT_SIZES, **SHARED_SIZES}, sparse=SHARED, which="first", kv="r+o",
        in_process=False,
    ),
    "deepseek_v3": Family(
        f"{LATENT};{NORMS}", sizes={**LATENT_SIZES, **SHARED_SIZES, "c": "0"}, sparse=SHARED, which="first",
        kv="r+o", in_process=False,
    ),
    "glm4_moe_lite": Family(
        f"{LATENT};{NORMS}", sizes={**LATENT_SIZES, **SHARED_SIZES, "c": "0"}, sparse=SHARED, which="first",
        kv="r+o", in_process=False,
    ),
    "mixtral": Family(
        sizes={**MOE_SIZES, "b": "0"}, sparse=experts("i"), which="all", window="all"
    ),
    "qwen2_moe": Family(
        f"{attention('b', '0')};{NORMS}",
        sizes={**QWEN, "d": "h/a", "b": "qkv_bias|0", "E": "num_experts", "x": "num_experts_per_tok",
               "m": "moe_intermediate_size", "s": "shared_expert_intermediate_size"},
        sparse=f"{experts('m')};{gated('s', 'mlp.shared_expert')};mlp.shared_expert_gate 1,h", which="step",
        window="from",
    ),
    "qwen3_moe": Family(
        f"{attention()};{HEAD_NORMS};{NORMS}",
        sizes={**QWEN, "E": "num_experts|num_local_experts", "x": "num_experts_per_tok",
               "m": "moe_intermediate_size"},
        sparse=experts("m"), which="step", window="all",
    ),
    "gpt_oss": Family(
        f"=self_attn.sinks a;{attention()};{NORMS}",
        sizes={**MOE_SIZES, "b": "attention_bias|0", },
        sparse="mlp.router E,h 1;=mlp.experts.gate_up_proj E,h,2*i;=mlp.experts.gate_up_proj_bias E,2*i;"
               "=mlp.experts.down_proj E,i,h;=mlp.experts.down_proj_bias E,h",
        which="all", window="every 2", in_process=False,
    ),
    "olmoe": Family(
        f"{attention()};self_attn.q_norm q;self_attn.k_norm k;{NORMS}",
        sizes={"d": "h/a", "E": "num_experts|num_local_experts", "x": "num_experts_per_tok"}, sparse=experts("i"),
        which="all",
    ),
    "flex_olmo": Family(
        f"{attention()};self_attn.q_norm q;self_attn.k_norm k;{POST_NORMS}",
        sizes={"d": "h/a", "E": "num_experts|num_local_experts", "x": "num_experts_per_tok"}, sparse=experts("i"),
        which="all",
    ),
    "phimoe": Family(
        f"{attention()};{BIASED_NORMS}", sizes={**MOE_SIZES, "d": "h/a", "z": "lm_head_bias|0"},
        outside="model.embed_tokens V,h;model.norm h 1", head="lm_head V,h z", sparse=experts("i", router="router"),
        which="all", window="all",
    ),
    "granitemoe": Family(
        sizes={**MOE_SIZES, "d": "h/a"}, sparse=experts("i", "block_sparse_moe", "router"), which="all"
    ),
    "granitemoeshared": Family(
        f"{attention()};{NORMS};s? shared_mlp.input_linear 2*s,h;s? shared_mlp.output_linear h,s",
        sizes={**MOE_SIZES, "d": "h/a", "s": "shared_intermediate_size|0"},
        sparse=experts("i", "block_sparse_moe", "router"), which="all",
    ),
    "glm4_moe": Family(
        f"{attention('b', '0')};z? self_attn.q_norm d;z? self_attn.k_norm d;{NORMS}",
        sizes={**SHARED_SIZES, "z": "use_qk_norm|0", "c": "0"}, sparse=SHARED, which="first",
    ),
    "dots1": Family(
        f"{attention()};{HEAD_NORMS};{NORMS}", sizes={**SHARED_SIZES, "c": "0"}, sparse=SHARED, which="first"
    ),
    "solar_open": Family(
        f"{attention('b', '0')};{NORMS}", sizes={**SHARED_SIZES, "i": "m"}, sparse=SHARED,
        which="all",
    ),
    "exaone_moe": Family(
        f"{attention('0', '0')};{HEAD_NORMS};{NORMS}",
        sizes={"c": "0", "E": "num_experts", "x": "num_experts_per_tok", "m": "moe_intermediate_size",
               "S": "num_shared_experts|0", "s": "S*m"},
        sparse=SHARED, which="first", window="every 4",
    ),
    "ernie4_5_moe": Family(
        dense=gated(bias="b"),
        sizes={"b": "use_bias|0", "E": "moe_num_experts", "x": "moe_k", "m": "moe_intermediate_size",
               "S": "moe_num_shared_experts|0", "s": "S*m"},
        sparse="mlp.gate E,h;=mlp.gate.moe_statics.e_score_correction_bias 1,E;=mlp.experts.gate_up_proj E,2*m,h;"
               f"=mlp.experts.down_proj E,h,m;{gated('s', 'mlp.shared_experts', 'b')}",
        which="range", head="lm_head V,h b",
    ),
    "hunyuan_v1_moe": Family(
        f"{attention()};self_attn.query_layernorm d;self_attn.key_layernorm d;{NORMS}",
        sizes={"c": "0", "E": "num_experts", "x": "moe_topk|0", "s": "i"},
        sparse=f"mlp.gate.wg E,h;=mlp.experts.gate_up_proj E,2*i,h;=mlp.experts.down_proj E,h,i;"
               f"{gated('i', 'mlp.shared_mlp')}",
        which="all",
    ),
    "minimax_m2": Family(
        f"{attention('0', '0')};self_attn.q_norm q;self_attn.k_norm k;{NORMS}", sizes=MOE_SIZES,
        sparse=experts("i"), which="all",
    ),
    "llama4_text": Family(
        dense=gated("w", "feed_forward"),
        sizes={**MOE_SIZES, "w": "intermediate_size_mlp", "s": "i", "W": "attention_chunk_size|0"},
        sparse="=feed_forward.experts.gate_up_proj E,h,2*i;=feed_forward.experts.down_proj E,i,h;"
               f"feed_forward.router E,h;{gated('i', 'feed_forward.shared_expert')}",
        which="interleave", window="every 4",
    ),
}  # fmt: skip
