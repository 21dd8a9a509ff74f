"""Prompts as tokens, by the model's own chat template where it has one."""

from collections.abc import Sequence
from typing import Any

from palmette.backends.backend import Message
from palmette.errors import BackendError, ConfigError


def render(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the tokens of a prompt. Without a chat template the contents are joined by empty lines.

    Raises ConfigError where a question holds one of the tokenizer's control tokens as text: it could end the user's
    turn and write the model's.
    """
    for message in messages:
        forged = next((token for token in tokenizer.all_special_tokens if token in message["content"]), None)
        if forged:
            raise ConfigError(f"a question holds {forged!r}, a control token of the model: take it out of the text")
    try:
        if not tokenizer.chat_template:
            return tuple(tokenizer.encode("\n\n".join(message["content"] for message in messages) + "\n"))
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    except Exception as error:
        raise BackendError(f"the model's chat template refuses the question: {error}") from error
