"""Rows: the tokens of a question with its steps, laid out as chat and plain text."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from palmette.backends.backend import Message
from palmette.backends.chat import encode_text, render
from palmette.prefixes import common_length
from palmette.score.scorer import Candidate

Tokens = tuple[int, ...]
PromptKey = tuple[tuple[str, str], ...]


class Row(NamedTuple):
    """All tokens of one candidate, prompt and steps, and how many of the last of them belong to its last step.

    Where the last step changes the tokens of the text before it, it begins at the first token that it changes.
    """

    tokens: Tokens
    step_tokens: int


class Rows(Protocol):
    """Turns candidates into rows. `prompts` has the tokens of each question's prompt until it is forgotten."""

    prompts: dict[PromptKey, Tokens]

    def of(self, candidates: Sequence[Candidate]) -> list[Row]:
        """Return the row of each candidate, in order."""

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that the reward model cannot be given; see `ReadsPrompts`."""


def prompt_key(messages: Sequence[Message]) -> PromptKey:
    """Return what tells questions apart: the roles and contents of their messages."""
    return tuple((message["role"], message["content"]) for message in messages)


class ChatRows:
    """Messages rendered as a prompt, the steps as the answer to it; a finished one ends with the end token.

    Rendering a prompt takes 0.6 to 1.3 ms, so that its tokens are kept.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.prompts: dict[PromptKey, Tokens] = {}

    def of(self, candidates: Sequence[Candidate]) -> list[Row]:
        """Return the row of each candidate; see `Rows`."""
        for candidate in candidates:
            key = prompt_key(candidate.messages)
            if key not in self.prompts:
                self.prompts[key] = render(self._tokenizer, candidate.messages)
        texts = {"".join(steps) for each in candidates for steps in (each.steps, each.steps[:-1])}
        # As plain text: if the policy spells out a control token, it must not become that token.
        encoded = {text: encode_text(self._tokenizer, text) for text in texts}
        rows: list[Row] = []
        for candidate in candidates:
            steps, above = encoded["".join(candidate.steps)], encoded["".join(candidate.steps[:-1])]
            ends = candidate.finished and self._tokenizer.eos_token_id is not None
            tokens = (*self.prompts[prompt_key(candidate.messages)], *steps, *[self._tokenizer.eos_token_id] * ends)
            rows.append(Row(tokens, len(steps) + ends - common_length(steps, above)))
        return rows

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that the reward model cannot be given; see `Rows`."""
        render(self._tokenizer, messages)
