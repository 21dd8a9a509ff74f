"""The model of `words` before its first update."""

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HEAD = 32


def new_policy(tokenizer: PreTrainedTokenizerFast, seed: int, width: int, layers: int) -> Qwen3ForCausalLM:
    """Return an untrained Qwen3: normalized queries and keys keep attention sharp and stable at high learning rates."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=2 * width,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        head_dim=HEAD,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear) and name != "lm_head":
            is_last = name.endswith(("o_proj", "down_proj"))
            nn.init.normal_(part.weight, 0.0, (part.in_features * (2 * layers if is_last else 1)) ** -0.5)
    return model
