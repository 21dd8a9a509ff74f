"""Turns chat messages and model text into tokens, so that no text can become a control token.

Control tokens are all that were added to the tokenizer's vocabulary, special or not, with or without a role, except
those of white space alone and the one for unknown characters: `<|start_header_id|>` opens a turn, a run of spaces or
line breaks (Gemma, GPT-NeoX) is text. What counts is which tokens a text gives after all of the tokenizer's
normalization, not what it looks like.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

from palmette.backends.backend import Message
from palmette.errors import BackendError, ConfigError

_WHITE_SPACE = " \t\r\n\u2581"  # SentencePiece writes a space as U+2581
_NEUTRAL = "x"
_MOST_REMEMBERED = 64
_known: "WeakKeyDictionary[Any, tuple[int, dict[int, str]]]" = WeakKeyDictionary()
_in_templates: "WeakKeyDictionary[Any, dict[tuple[Any, ...], list[int]]]" = WeakKeyDictionary()


def render(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the tokens of a prompt. Without a chat template the messages' contents are joined by empty lines.

    Raises ConfigError if a message gives a control token, by itself or with the template around it: it could end the
    user's turn and begin the assistant's; and if most of the messages' tokens are unknown to the model. Raises
    BackendError if the template or the tokenizer fails.
    """
    controls = control_tokens(tokenizer)
    try:
        tokens = _prompt(tokenizer, messages)
        alone = [token for message in messages for token in _encode(tokenizer, message["content"])]
        expected = _template_controls(tokenizer, messages, controls)
    except Exception as error:
        raise BackendError(f"the model's chat template or tokenizer fails on the question: {error}") from error
    held = next((controls[token] for token in alone if token in controls), None)
    if held is not None:
        raise ConfigError(f"a question holds {held!r}, a control token of the model: take it out of the text")
    unknown = alone.count(tokenizer.unk_token_id)
    if 2 * unknown > len(alone):
        raise ConfigError(
            f"{unknown} of the {len(alone)} tokens of a question are unknown to the model's tokenizer: put it in the "
            f"words that the model was trained on (task.format, task.prompt)"
        )
    if _only(tokens, controls) != expected:
        raise ConfigError(
            "the question's text changes which control tokens the chat template gives: it completes one, or the "
            "template reads it as a switch. Change the text, or the template"
        )
    return tokens


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the text of every control token by its id; remembered as long as no token is added."""
    size, known = _known.get(tokenizer, (None, {}))
    if size != len(tokenizer):
        known = _find_controls(tokenizer)
        _known[tokenizer] = len(tokenizer), known
    return known


def _find_controls(tokenizer: Any) -> dict[int, str]:
    added = {int(token): str(entry) for token, entry in tokenizer.added_tokens_decoder.items()}
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
    every = {**special, **added}
    return {token: text for token, text in every.items() if text.strip(_WHITE_SPACE) and token not in unknown}


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that a model wrote; where it spells a control token, the tokens of the spelling.

    Such a spelling is cut after its first character, and the pieces are tokenized apart.
    """
    controls = control_tokens(tokenizer)
    tokens: list[int] = []
    waiting = [text]
    while waiting:
        piece = waiting.pop()
        found = _encode(tokenizer, piece, split_special_tokens=True)
        spelled = {controls[token] for token in found if token in controls}
        if not spelled:
            tokens += found
        elif len(piece) > 1:
            waiting += reversed(_cut(piece, spelled))
    return tokens


def encode_prompt(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return the tokens of a prompt without a template, after the token that begins every text, if there is one."""
    first = list(tokenizer.encode(""))[:1]
    begins = first if first and first[0] == tokenizer.bos_token_id else []
    return (*begins, *encode_text(tokenizer, text))


def spell(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Return the text of each token, as far as it has one by itself."""
    return [str(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in tokens]


def _cut(text: str, spelled: set[str]) -> list[str]:
    """Return the text in pieces, cut after the first character of every spelling; by character if there is none."""
    pattern = "|".join(re.escape(spelling) for spelling in sorted(spelled))
    cuts = [match.start() + 1 for match in re.finditer(pattern, text) if match.start() + 1 < len(text)]
    # A tokenizer that normalizes finds spellings that are not in the text as such.
    bounds = [0, *(cuts or range(1, len(text))), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def _prompt(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    if not tokenizer.chat_template:
        return tuple(tokenizer.encode("\n\n".join(message["content"] for message in messages) + "\n"))
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return tuple(_encode(tokenizer, text))


def _template_controls(tokenizer: Any, messages: Sequence[Message], controls: dict[int, str]) -> list[int]:
    """Return the control tokens that the template puts around these messages, whatever their text; remembered."""
    known = _in_templates.setdefault(tokenizer, {})
    # Thousands of questions have the same roles: tokenizing each of them twice took half of the check before a run.
    told = (tuple((name, value) for name, value in message.items() if name != "content") for message in messages)
    key = (tokenizer.chat_template, len(tokenizer), *told)
    if key not in known:
        if len(known) == _MOST_REMEMBERED:
            known.clear()
        neutral = [{**message, "content": _NEUTRAL} for message in messages]
        known[key] = _only(_prompt(tokenizer, neutral), controls)
    return known[key]


def _encode(tokenizer: Any, text: str, **options: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, **options))


def _only(tokens: Sequence[int], controls: dict[int, str]) -> list[int]:
    return [token for token in tokens if token in controls]
