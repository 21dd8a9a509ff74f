"""A tokenizer of the recipes, in transformers format."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


def tokenizer_of(tokens: Iterable[str], piece: str, template: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of these tokens: a text is cut into what the pattern `piece` finds, and nothing is lost."""
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *tokens))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(piece), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=template,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
