"""Prompts as tokens, by the model's own chat template where it has one."""

from collections.abc import Sequence
from typing import Any

from palmette.errors import BackendError

Message = dict[str, str]


def render(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the tokens of a prompt. Without a chat template the contents are joined by empty lines."""
    if not tokenizer.chat_template:
        text = "\n\n".join(message["content"] for message in messages) + "\n"
        return tuple(tokenizer.encode(text))
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise BackendError(f"the model's chat template refuses the question: {error}") from error
    return tuple(tokenizer.encode(text, add_special_tokens=False))
