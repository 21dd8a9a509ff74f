"""Renders chat messages to prompt tokens, by the model's chat template if it has one."""

from collections.abc import Sequence
from typing import Any

from palmette.backends.backend import Message
from palmette.errors import BackendError, ConfigError


def render(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the tokens of a prompt. Without a chat template the messages' contents are joined by empty lines.

    Raises ConfigError if a message contains one of the tokenizer's special tokens as text: it could end the user's
    turn and begin the assistant's. Raises BackendError if the template or the tokenizer fails.
    """
    for message in messages:
        special = next((token for token in tokenizer.all_special_tokens if token in message["content"]), None)
        if special:
            raise ConfigError(f"a question holds {special!r}, a control token of the model: take it out of the text")
    try:
        if not tokenizer.chat_template:
            return tuple(tokenizer.encode("\n\n".join(message["content"] for message in messages) + "\n"))
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    except Exception as error:
        raise BackendError(f"the model's chat template or tokenizer fails on the question: {error}") from error
