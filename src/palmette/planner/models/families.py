"""The tensors of decoder families, declared as notation.py says: each is compared with transformers' own models."""

from typing import Any

from palmette.planner.models.expert_families import EXPERT_FAMILIES
from palmette.planner.models.notation import (
    BIASED_NORMS,
    FOUR_NORMS,
    HEAD_NORMS,
    LATENT,
    LATENT_SIZES,
    MLP4,
    NORMS,
    POST_NORMS,
    QWEN,
    Family,
    attention,
    gated,
)

_GPTJ: dict[str, Any] = {
    "dense": "mlp.fc_in i,h 1;mlp.fc_out h,i 1",
    "sizes": {"h": "n_embd", "n": "n_layer", "a": "n_head", "g": "a", "d": "h/a", "i": "n_inner|4*h",
              "P": "n_positions"},
    "outside": "transformer.wte V,h;transformer.ln_f h 1", "head": "lm_head V,h 1", "layers": "transformer.h",
    "in_process": False,
}  # fmt: skip
"""What CodeGen has of GPT-J: all but the layout of its attention."""

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(sizes={"b": "0", "c": "0"}, window="all"),
    "ministral": Family(sizes={"b": "0", "c": "0"}, window="all"),
    "ministral3": Family(sizes={"b": "0", "c": "0"}, window="all"),
    "qwen2": Family(f"{attention('1', '0')};{NORMS}", sizes={**QWEN, "d": "h/a"}, window="from"),
    "qwen3": Family(f"{attention()};{HEAD_NORMS};{NORMS}", sizes={**QWEN, }, window="from"),
    "gemma": Family(sizes={"c": "0"}),
    "gemma2": Family(f"{attention()};{FOUR_NORMS}", sizes={"c": "0"}, window="every 2"),
    "gemma3_text": Family(
        f"{attention()};{HEAD_NORMS};{FOUR_NORMS}", sizes={"c": "0"}, window="every 6"
    ),
    "vaultgemma": Family(
        f"{attention()};input_layernorm h;pre_feedforward_layernorm h",
        sizes={"c": "0"}, window="every 2",
    ),
    "phi": Family(
        f"{attention('1', '1', 'dense')};z? self_attn.q_layernorm d 1;z? self_attn.k_layernorm d 1;input_layernorm h 1",
        "mlp.fc1 i,h 1;mlp.fc2 h,i 1", sizes={"d": "h/a", "z": "qk_layernorm|0"},
        outside="model.embed_tokens V,h;model.final_layernorm h 1", head="lm_head V,h 1",
    ),
    "phi3": Family(
        f"self_attn.o_proj h,q;self_attn.qkv_proj q+2*k,h;{NORMS}", "mlp.gate_up_proj 2*i,h;mlp.down_proj h,i",
        window="all",
    ),
    "smollm3": Family(sizes={"d": "h/a", "Y": "use_sliding_window|0"}),
    "olmo": Family(attention(), sizes={"d": "h/a", "c": "0"}, outside="model.embed_tokens V,h"),
    "olmo2": Family(
        f"{attention()};self_attn.q_norm q;self_attn.k_norm k;{POST_NORMS}", sizes={"d": "h/a", "c": "0"}
    ),
    "olmo3": Family(
        f"{attention()};self_attn.q_norm q;self_attn.k_norm k;{POST_NORMS}", sizes={"d": "h/a", "c": "0"},
        window="every 4",
    ),
    "glm": Family(
        f"{attention('b', '0')};{NORMS}", "mlp.gate_up_proj 2*i,h;mlp.down_proj h,i", sizes={}
    ),
    "glm4": Family(
        f"{attention('b', '0')};{NORMS};post_self_attn_layernorm h;post_mlp_layernorm h",
        "mlp.gate_up_proj 2*i,h;mlp.down_proj h,i", sizes={},
    ),
    "granite": Family(sizes={"d": "h/a"}),
    "cohere": Family(
        f"{attention()};z? self_attn.q_norm a,d;z? self_attn.k_norm g,d;input_layernorm h",
        sizes={"d": "h/a", "c": "0", "z": "use_qk_norm|0"},
    ),
    "cohere2": Family(f"{attention()};input_layernorm h", sizes={"c": "0"}, window="every 4"),
    "stablelm": Family(
        f"{attention('b', '0')};z? self_attn.q_layernorm.norms.[a] d;z? self_attn.k_layernorm.norms.[g] d;"
        "input_layernorm h 1;!y? post_attention_layernorm h 1",
        sizes={"d": "h/a", "b": "use_qkv_bias|0", "c": "0", "z": "qk_layernorm|0", "y": "use_parallel_residual|0"},
        outside="model.embed_tokens V,h;model.norm h 1", in_process=False,
    ),
    "starcoder2": Family(
        f"{attention()};{BIASED_NORMS}", "mlp.c_fc i,h b;mlp.c_proj h,i b",
        sizes={"d": "h/a", "b": "use_bias|0"}, outside="model.embed_tokens V,h;model.norm h 1", window="all",
    ),
    # y: the newer layers of 40B and 180B; w: one key head; z: two norms, for attention and feed-forward.
    "falcon": Family(
        "self_attention.query_key_value q+2*k,h b;self_attention.dense h,h b;z? ln_attn h 1;z? ln_mlp h 1;"
        "!z? input_layernorm h 1;l? post_attention_layernorm h 1",
        MLP4.format("b"),
        sizes={"d": "h/a", "y": "new_decoder_architecture|0", "w": "multi_query|0", "b": "bias|0",
               "i": "ffn_hidden_size|4*h", "g": "y?num_kv_heads|y?a|w?1|a", "l": "parallel_attn=0|0",
               "z": "l?0|num_ln_in_parallel_attn=2|y"},
        outside="transformer.word_embeddings V,h;transformer.ln_f h 1", layers="transformer.h",
        in_process=False,
    ),
    "gpt2": Family(
        "ln_1 h 1;attn.c_attn h,3*h;=attn.c_attn.bias 3*h;attn.c_proj h,h;=attn.c_proj.bias h;ln_2 h 1",
        "mlp.c_fc h,i;=mlp.c_fc.bias i;mlp.c_proj i,h;=mlp.c_proj.bias h",
        sizes={"h": "n_embd", "n": "n_layer", "a": "n_head", "g": "a", "d": "h/a", "i": "n_inner|4*h",
               "P": "n_positions"},
        outside="transformer.wte V,h;transformer.wpe P,h;transformer.ln_f h 1", layers="transformer.h",
    ),
    "gpt_neox": Family(
        f"{BIASED_NORMS};attention.query_key_value 3*h,h b;attention.dense h,h b", MLP4.format("1"),
        sizes={"g": "a", "d": "h/a", "b": "attention_bias|0"},
        outside="gpt_neox.embed_in V,h;gpt_neox.final_layer_norm h 1", layers="gpt_neox.layers",
    ),
    "gptj": Family(
        "ln_1 h 1;attn.k_proj h,h;attn.v_proj h,h;attn.q_proj h,h;attn.out_proj h,h", **_GPTJ
    ),
    "codegen": Family(
        "ln_1 h 1;attn.qkv_proj 3*h,h;attn.out_proj h,h", **_GPTJ
    ),
    "gpt_bigcode": Family(
        "ln_1 h 1;attn.c_attn h+2*k,h 1;attn.c_proj h,h 1;ln_2 h 1", "mlp.c_fc i,h 1;mlp.c_proj h,i 1",
        sizes={"h": "n_embd", "n": "n_layer", "a": "n_head", "w": "multi_query|0", "g": "w?1|a", "d": "h/a",
               "i": "n_inner|4*h", "P": "n_positions"},
        outside="transformer.wte V,h;transformer.wpe P,h;transformer.ln_f h 1", layers="transformer.h",
        in_process=False,
    ),
    "opt": Family(
        "self_attn.k_proj h,h b;self_attn.v_proj h,h b;self_attn.q_proj h,h b;self_attn.out_proj h,h b;"
        "z? self_attn_layer_norm h 1;z? final_layer_norm h 1", "fc1 i,h b;fc2 h,i b",
        sizes={"g": "a", "d": "h/a", "i": "ffn_dim", "b": "enable_bias|0", "e": "word_embed_proj_dim|h",
               "z": "layer_norm_elementwise_affine|0", "y": "do_layer_norm_before|0"},
        outside="model.decoder.embed_tokens V,e;model.decoder.embed_positions P+2,h;"
                "e-h? model.decoder.project_out e,h;e-h? model.decoder.project_in h,e;"
                "y*z? model.decoder.final_layer_norm h 1",
        head="lm_head V,e", layers="model.decoder.layers",
    ),
    "bloom": Family(
        f"{BIASED_NORMS};self_attention.query_key_value 3*h,h 1;self_attention.dense h,h 1", MLP4.format("1"),
        sizes={"h": "hidden_size|n_embed", "n": "n_layer|num_hidden_layers", "a": "n_head|num_attention_heads",
               "g": "a", "d": "h/a", "i": "4*h"},
        outside="transformer.word_embeddings V,h;transformer.word_embeddings_layernorm h 1;transformer.ln_f h 1",
        layers="transformer.h",
        in_process=False,
    ),
    "mpt": Family(
        "norm_1 h;attn.Wqkv 3*h,h;attn.out_proj h,h;norm_2 h", "ffn.up_proj i,h;ffn.down_proj h,i",
        sizes={"h": "d_model", "n": "n_layers", "a": "n_heads", "g": "a", "d": "h/a", "e": "expansion_ratio",
               "i": "e*h", "P": "max_seq_len"},
        outside="transformer.wte V,h;transformer.norm_f h", layers="transformer.blocks", in_process=False,
    ),
    "nemotron": Family(
        f"{attention()};{BIASED_NORMS}", "mlp.up_proj i,h c;mlp.down_proj h,i c",
        outside="model.embed_tokens V,h;model.norm h 1", in_process=False,
    ),
    "jais2": Family(
        f"{attention()};{BIASED_NORMS}", "mlp.up_proj i,h c;mlp.down_proj h,i c",
        sizes={"b": "attention_bias|0", "c": "mlp_bias|0"}, outside="model.embed_tokens V,h;model.norm h 1",
    ),
    "seed_oss": Family(
        f"{attention('b', 'z')};{NORMS}",
        sizes={"b": "attention_bias|0", "z": "attention_out_bias|0"},
    ),
    "arcee": Family(dense="mlp.up_proj i,h c;mlp.down_proj h,i c"),
    "apertus": Family(
        f"{attention()};{HEAD_NORMS};attention_layernorm h;feedforward_layernorm h",
        "mlp.up_proj i,h;mlp.down_proj h,i;=mlp.act_fn.alpha_p 1;=mlp.act_fn.alpha_n 1", sizes={"d": "h/a"},
    ),
    "cwm": Family(sizes={"b": "0", }, window="after 4"),
    "helium": Family(
        f"self_attn.q_proj q,h b;self_attn.k_proj k,h b;self_attn.v_proj k,h b;self_attn.o_proj h,h;{NORMS}"
    ),
    "hunyuan_v1_dense": Family(
        f"{attention()};self_attn.query_layernorm d;self_attn.key_layernorm d;{NORMS}", sizes={"c": "0"}
    ),
    "exaone4": Family(
        f"{attention('0', '0')};{HEAD_NORMS};{POST_NORMS}", sizes={"d": "head_dim|h/a", "c": "0"}, window="every 4"
    ),
    "ernie4_5": Family(
        dense=gated(bias="b"), sizes={"b": "use_bias|0", }
    ),
    "persimmon": Family(
        "self_attn.query_key_value 3*h,h 1;self_attn.dense h,h 1;z? self_attn.q_layernorm d 1;"
        f"z? self_attn.k_layernorm d 1;{BIASED_NORMS}", MLP4.format("1"),
        sizes={"g": "a", "d": "h/a", "z": "qk_layernorm|0"},
        outside="model.embed_tokens V,h;model.final_layernorm h 1",
    ),
    "bitnet": Family(
        f"{attention()};self_attn.attn_sub_norm h;{NORMS}", f"{gated()};mlp.ffn_sub_norm i", sizes={"d": "h/a"}
    ),
    "nanochat": Family(
        attention("b", "b"), "mlp.fc1 i,h;mlp.fc2 h,i", sizes={"d": "h/a"}, outside="model.embed_tokens V,h"
    ),
    "minicpm3": Family(f"{LATENT};{NORMS}", sizes={**LATENT_SIZES}, kv="r+o", in_process=False),
    "youtu": Family(f"{LATENT};{NORMS}", sizes={**LATENT_SIZES, "c": "0"}, kv="r+o", in_process=False),
    **EXPERT_FAMILIES,
}  # fmt: skip
"""By model_type."""

FAMILIES |= {
    "qwen2_vl_text": FAMILIES["qwen2"], "qwen2_5_vl_text": FAMILIES["qwen2"], "qwen3_vl_text": FAMILIES["qwen3"],
}  # fmt: skip
