"""The vision towers of models that also read images, declared as notation.py says; H is the text model's hidden size.

A list in `vision_config` counts as its length.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tower:
    """What a model_type adds to its text model: the numbers of its `vision_config`, and its tensors."""

    sizes: Mapping[str, str]
    outside: str
    layers: str
    layer: str


_QWEN = {"n": "depth|32", "C": "in_channels|3", "p": "patch_size|14", "T": "temporal_patch_size|2",
         "M": "spatial_merge_size|2"}  # fmt: skip
_ATTENTION = "attn.qkv 3*h,h 1;attn.proj h,h 1"

TOWERS: dict[str, Tower] = {
    "qwen2_vl": Tower(
        {**_QWEN, "h": "embed_dim|1280", "R": "mlp_ratio|4", "i": "R*h", "o": "hidden_size|3584"},
        "model.visual.patch_embed.proj h,C,T,p,p;model.visual.merger.ln_q h 1;"
        "model.visual.merger.mlp.0 M*M*h,M*M*h 1;model.visual.merger.mlp.2 o,M*M*h 1",
        "model.visual.blocks", f"norm1 h 1;norm2 h 1;{_ATTENTION};mlp.fc1 i,h 1;mlp.fc2 h,i 1",
    ),
    "qwen2_5_vl": Tower(
        {**_QWEN, "h": "hidden_size|3584", "i": "intermediate_size|3420", "o": "out_hidden_size|3584"},
        "model.visual.patch_embed.proj h,C,T,p,p;model.visual.merger.ln_q h;"
        "model.visual.merger.mlp.0 M*M*h,M*M*h 1;model.visual.merger.mlp.2 o,M*M*h 1",
        "model.visual.blocks",
        f"norm1 h;norm2 h;{_ATTENTION};mlp.gate_proj i,h 1;mlp.up_proj i,h 1;mlp.down_proj h,i 1",
    ),
    "qwen3_vl": Tower(
        {**_QWEN, "n": "depth|27", "h": "hidden_size|1152", "i": "intermediate_size|4304", "p": "patch_size|16",
         "o": "out_hidden_size|3584", "P": "num_position_embeddings|2304", "D": "deepstack_visual_indexes|3"},
        "model.visual.patch_embed.proj h,C,T,p,p 1;model.visual.pos_embed P,h;model.visual.merger.norm h 1;"
        "model.visual.merger.linear_fc1 M*M*h,M*M*h 1;model.visual.merger.linear_fc2 o,M*M*h 1;"
        "model.visual.deepstack_merger_list.[D].norm M*M*h 1;"
        "model.visual.deepstack_merger_list.[D].linear_fc1 M*M*h,M*M*h 1;"
        "model.visual.deepstack_merger_list.[D].linear_fc2 o,M*M*h 1",
        "model.visual.blocks", f"norm1 h 1;norm2 h 1;{_ATTENTION};mlp.linear_fc1 i,h 1;mlp.linear_fc2 h,i 1",
    ),
    "gemma3": Tower(
        {"n": "num_hidden_layers|12", "h": "hidden_size|768", "i": "intermediate_size|3072", "C": "num_channels|3",
         "p": "patch_size|16", "S": "image_size|224", "e": "S/p", "z": "vision_use_head|1"},
        "model.vision_tower.embeddings.patch_embedding h,C,p,p 1;"
        "model.vision_tower.embeddings.position_embedding e*e,h;model.vision_tower.post_layernorm h 1;"
        "z? =model.vision_tower.head.probe 1,1,h;z? =model.vision_tower.head.attention.in_proj_weight 3*h,h;"
        "z? =model.vision_tower.head.attention.in_proj_bias 3*h;"
        "z? model.vision_tower.head.attention.out_proj h,h 1;z? model.vision_tower.head.layernorm h 1;"
        "z? model.vision_tower.head.mlp.fc1 i,h 1;z? model.vision_tower.head.mlp.fc2 h,i 1;"
        "=model.multi_modal_projector.mm_input_projection_weight h,H;model.multi_modal_projector.mm_soft_emb_norm h",
        "model.vision_tower.encoder.layers",
        "layer_norm1 h 1;self_attn.k_proj h,h 1;self_attn.v_proj h,h 1;self_attn.q_proj h,h 1;"
        "self_attn.out_proj h,h 1;layer_norm2 h 1;mlp.fc1 i,h 1;mlp.fc2 h,i 1",
    ),
    "mistral3": Tower(
        {"n": "num_hidden_layers|24", "h": "hidden_size|1024", "i": "intermediate_size|4096", "C": "num_channels|3",
         "p": "patch_size|16", "M": "spatial_merge_size|2", "c": "multimodal_projector_bias|0"},
        "model.vision_tower.patch_conv h,C,p,p;model.vision_tower.ln_pre h;model.multi_modal_projector.norm h;"
        "model.multi_modal_projector.patch_merger.merging_layer h,M*M*h;"
        "model.multi_modal_projector.linear_1 H,h c;model.multi_modal_projector.linear_2 H,H c",
        "model.vision_tower.transformer.layers",
        "attention_norm h;feed_forward.gate_proj i,h;feed_forward.up_proj i,h;feed_forward.down_proj h,i;"
        "attention.k_proj h,h;attention.v_proj h,h;attention.q_proj h,h;attention.o_proj h,h;ffn_norm h",
    ),
}  # fmt: skip
"""By the model_type of the whole model."""

TEXT_FAMILIES = {
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text", "gemma3": "gemma3_text",
    "mistral3": "mistral",
}  # fmt: skip
"""The family of the text model, for a config.json that has its numbers beside its `vision_config`."""
