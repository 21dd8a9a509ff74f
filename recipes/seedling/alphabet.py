"""A tokenizer of single characters for `ladder`, in transformers format."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHARACTERS = "0123456789+-*()=\n"
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
TEMPLATE = "{{ bos_token }}{{ messages[-1]['content'] }}{{ '\\n' }}"


def alphabet() -> PreTrainedTokenizerFast:
    """Return the tokenizer: one token a character, a prompt is `<bos>`, the expression, a line break."""
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
