"""The policy before its first update."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def new_policy(tokenizer: PreTrainedTokenizerFast, seed: int, width: int = 128, layers: int = 6) -> LlamaForCausalLM:
    """Return an untrained Llama with heads of 32, by default of 1.2 M parameters.

    Six layers of 128 find their place in an expression of `ladder` sooner than four of 160: loss 0.68 against 0.90
    after 700 updates.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=width * 11 // 4,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)
