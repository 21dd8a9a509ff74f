"""Small reward models of published kinds: tokenizers with the published tokens at the published ids, random weights."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from palmette.zoo.foreign import quiet

Any_: Any = transformers  # Half of transformers has no type annotations.

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama 3 and Qwen cut text into words before they merge bytes."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
)
LLAMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] "
    "+ '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
)


def sentencepiece(at: Mapping[str, int]) -> Any:
    """Return a tokenizer like Llama 2's and Mistral's: a piece for each character and byte, these pieces at these ids.

    A space is put before every text, and <s> by the tokenizer itself.
    """
    letters = [chr(code) for code in range(33, 127)]
    base = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁", "к", "и"]
    pieces = _filled([*base, "ки"], at)
    merges = [("к", "и"), *((piece[0], piece[1:]) for piece in at)]
    made = Tokenizer(models.BPE(vocab=pieces, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", pieces["<s>"])])
    return Any_.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def byte_level(
    special: Sequence[str], *, bos: str | None, eos: str, words: Sequence[str] = (), last_id: int | None = None
) -> Any:
    """Return a tokenizer like Llama 3's and Qwen's: a token for each byte, and one for each of these words.

    `+` is 10 and `-` is 12, as in both. With `last_id` the last special token has this id.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges: list[tuple[str, str]] = []
    for word in words:
        spelled = letters.pre_tokenize_str(word)[0][0]
        merges += [(spelled[:end], spelled[end]) for end in range(1, len(spelled))]
    merges = list(dict.fromkeys(merges))
    vocabulary = _filled([*sorted(alphabet), *dict.fromkeys(one + other for one, other in merges)], {})
    if last_id is not None:
        for number in range(len(vocabulary), last_id + 1 - len(special)):
            vocabulary[f"unused{number}"] = number
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return Any_.PreTrainedTokenizerFast(tokenizer_object=made, bos_token=bos, eos_token=eos)


def _filled(first: Sequence[str], at: Mapping[str, int]) -> dict[str, int]:
    """Return ids for the first pieces in order, those of `at` at their ids, and pieces that nothing gives between."""
    named = {place: piece for piece, place in at.items()}
    size = max([len(first) - 1, *named]) + 1
    rest = iter(first)
    pieces = {}
    for place in range(size + len(named)):
        piece = named.get(place) or next(rest, f"unused{place}")
        pieces[piece] = place
    return pieces


def shepherd_tokenizer() -> Any:
    """Return a tokenizer with the tokens of Math-Shepherd's model at their ids."""
    return sentencepiece({"▁-": 387, "▁+": 648, "▁ки": 12902})


def qwen_prm_tokenizer() -> Any:
    """Return a tokenizer with <extra_0> where Qwen2.5 has it."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>")
    made = byte_level(special, bos=None, eos="<|im_end|>", last_id=151651)
    made.chat_template = CHATML
    return made


def llama_tokenizer(words: Sequence[str] = ()) -> Any:
    """Return a tokenizer like Llama 3.1's, with a token for each of these words too."""
    special = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
    made = byte_level(special, bos="<|begin_of_text|>", eos="<|eot_id|>", words=words)
    made.chat_template = LLAMA_CHAT
    return made


def newline_tokenizer(bos: str | None = "<|endoftext|>") -> Any:
    """Return a tokenizer in which a full stop and a line break after it are one token, as in Qwen2.5."""
    return byte_level(("<|endoftext|>", "<|im_end|>"), bos=bos, eos="<|im_end|>", words=(".\n",))


def tiny(config_class: str, tokenizer: Any, **changes: Any) -> Any:
    """Return the config of a tiny model for a tokenizer. Weights drawn from it are wide, so that outputs differ."""
    settings = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "initializer_range": 0.4,
        "tie_word_embeddings": False, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    return getattr(transformers, config_class)(**{**settings, **changes})


def save(
    model: Any, tokenizer: Any, folder: Path, head: Mapping[str, torch.Tensor] | None = None, **config: Any
) -> str:
    """Write a model with its tokenizer; with `head` these tensors beside the body's, in place of its `score`."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if head is not None:
        path = folder / "model.safetensors"
        body = {name: tensor for name, tensor in load_file(path).items() if not name.startswith("score.")}
        save_file({**body, **head}, path, metadata={"format": "pt"})
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return str(folder)
