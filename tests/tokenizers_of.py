"""Small tokenizers in the style of published chat models: same kinds of added tokens, same kinds of templates."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Style:
    """How a family of chat models marks turns.

    `special` and `plain` are its added tokens, with and without the mark "special"; `turn` is what a template puts
    around one message, `opening` what comes before the assistant's. Roles of the tokenizer: bos and eos alone.
    """

    bos: str
    eos: str
    special: tuple[str, ...]
    plain: tuple[str, ...]
    turn: str
    opening: str
    sentencepiece: bool = False
    normalized: bool = False


STYLES = {
    "llama-3": Style(
        "<|begin_of_text|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"),
        (), "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "deepseek": Style(
        "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", (),
        ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>"),
        "<｜User｜>{content}", "<｜Assistant｜>",
    ),
    "qwen": Style(
        "<|endoftext|>", "<|im_end|>", ("<|im_start|>", "<|vision_start|>"), ("<tool_call>", "</tool_call>", "<think>"),
        "<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n",
    ),
    "mistral": Style(
        "<s>", "</s>", ("[INST]", "[/INST]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]"), (), "[INST] {content}[/INST]", "",
        sentencepiece=True,
    ),
    "gemma": Style(
        "<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>"), ("\n\n", "\n\n\n", "▁▁", "▁▁▁", "<table>", "<unused7>"),
        "<start_of_turn>{role}\n{content}<end_of_turn>\n", "<start_of_turn>model\n", sentencepiece=True,
    ),
    "phi": Style(  # its tokens are found in normalized text too
        "<s>", "<|endoftext|>", ("<|end|>",), ("<|user|>", "<|assistant|>", "<|system|>"),
        "<|{role}|>\n{content}<|end|>\n", "<|assistant|>\n", normalized=True,
    ),
}  # fmt: skip


def tokenizer_of(name: str, templated: bool = True) -> PreTrainedTokenizerFast:
    """Return the small tokenizer of a family; without a template if not `templated`."""
    style = STYLES[name]
    made = _sentencepiece() if style.sentencepiece else _bytes()
    if style.normalized:
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.add_special_tokens(_added((style.bos, style.eos, *style.special), style, special=True))
    made.add_tokens(_added(style.plain, style, special=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=style.bos, eos_token=style.eos)
    if templated:
        turn = "{{ '" + style.turn.replace("\n", "\\n") + "' }}"
        turn = turn.replace("{role}", "' + message['role'] + '").replace("{content}", "' + message['content'] + '")
        opening = style.opening.replace("\n", "\\n")
        tokenizer.chat_template = (
            "{{ bos_token }}{% for message in messages %}" + turn + "{% endfor %}"
            "{% if add_generation_prompt %}{{ '" + opening + "' }}{% endif %}"
        )
    return tokenizer


def _added(tokens: Sequence[str], style: Style, *, special: bool) -> list[AddedToken]:
    return [AddedToken(token, special=special, normalized=style.normalized) for token in tokens]


def _bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _sentencepiece() -> Tokenizer:
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁"]
    places = {letter: place for place, letter in enumerate(vocabulary)}
    made = Tokenizer(models.BPE(vocab=places, merges=[], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made
