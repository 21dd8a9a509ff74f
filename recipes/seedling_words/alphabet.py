"""A tokenizer of whole words and whole numbers for `words`."""

from transformers import PreTrainedTokenizerFast

from palmette.tasks.words.vocabulary import vocabulary
from recipes.tokenizer import tokenizer_of

TEMPLATE = "{{ bos_token }}{{ messages[-1]['content'].split('\\n')[0] }}{{ '\\n' }}"
"""The question alone: its first line. How to solve it the model knows."""
NUMBERS = tuple(str(number) for number in range(10, 100))
"""One token each, as the digits are: sums of small numbers are then a table, which is learned sooner than carrying."""


def alphabet() -> PreTrainedTokenizerFast:
    """Return the tokenizer: a piece is a token with the space before it, if there is one, so that no space is lost."""
    pieces = (*vocabulary(), *NUMBERS)
    tokens = ("\n", *pieces, *(f" {piece}" for piece in pieces))
    return tokenizer_of(tokens, r" ?(?:[A-Za-z]+|[1-9][0-9]|[0-9]|[^\sA-Za-z0-9])|\n", TEMPLATE)
