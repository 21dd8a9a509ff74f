"""A tokenizer of single characters for `ladder`."""

from transformers import PreTrainedTokenizerFast

from recipes.tokenizer import tokenizer_of

CHARACTERS = "0123456789+-*()=\n"
TEMPLATE = "{{ bos_token }}{{ messages[-1]['content'] }}{{ '\\n' }}"


def alphabet() -> PreTrainedTokenizerFast:
    """Return the tokenizer: one token a character, a prompt is `<bos>`, the expression, a line break."""
    return tokenizer_of(CHARACTERS, r"[\s\S]", TEMPLATE)
