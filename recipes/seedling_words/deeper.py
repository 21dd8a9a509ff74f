"""A model with more layers that, before it is trained, says what it said without them."""

from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.seedling_words.untrained import new_policy


def deeper(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, more: int, seed: int) -> Qwen3ForCausalLM:
    """Return a copy with so many layers behind the last one, which add nothing yet.

    A judge needs them: what a language model expects next is in its last layer, so that only a layer behind it can
    compare this with what was written.
    """
    layers = model.config.num_hidden_layers
    grown = new_policy(tokenizer, seed, model.config.hidden_size, layers + more)
    grown.load_state_dict(model.state_dict(), strict=False)
    for layer in grown.model.layers[layers:]:
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            nn.init.zeros_(last.weight)
    return grown


def save_deeper(source: Path, folder: Path, tokenizer: PreTrainedTokenizerFast, more: int, seed: int) -> Path:
    """Write the deeper copy of the model in a folder to another folder, and return that."""
    model = Qwen3ForCausalLM.from_pretrained(source, use_safetensors=True)
    deeper(model, tokenizer, more, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
