"""Tiny models, made anew for each session."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, PreTrainedTokenizerFast

from recipes.seedling.alphabet import alphabet


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,  # Wide, so that logits differ and samples are not all alike.
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return alphabet()


@pytest.fixture(scope="session")
def policy(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(tiny_config(tokenizer)).eval()


@pytest.fixture(scope="session")
def reward(tokenizer: PreTrainedTokenizerFast) -> LlamaForTokenClassification:
    torch.manual_seed(1)
    config = tiny_config(tokenizer)
    config.num_labels = 1
    return LlamaForTokenClassification(config).eval()


@pytest.fixture
def prompt(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple(tokenizer.encode(f"<bos>{text}\n", add_special_tokens=False))
