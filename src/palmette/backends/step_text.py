"""Where a step ends and what its text is, decided from its tokens: the same rule for every backend with a tokenizer."""

from collections.abc import Sequence
from typing import Any

from palmette.backends.backend import Expansion, Finish
from palmette.errors import BackendError

_CONTEXT_TOKENS = 4  # Prefix tokens decoded together with a step: some tokenizers drop the spaces a text begins with.

_PARTIAL = "\ufffd"
"""What tokens that begin or end inside a multi-byte character are decoded to."""

Ending = tuple[Finish, str]
"""What ended a step, and the text of the step."""


class StepText:
    """Reads steps with a policy's tokenizer; `end_tokens` are all tokens that end a solution."""

    def __init__(self, tokenizer: Any, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.end_tokens = end_tokens
        self._may_end_of: dict[tuple[int, str], bool] = {}

    def ending(self, expansion: Expansion, tokens: Sequence[int]) -> Ending | None:
        """Return what ends the step with the last of its tokens, and the step's text; None if the step goes on."""
        if tokens[-1] in self.end_tokens:
            return "end", self._text(expansion, tokens)
        step_end, stop = expansion.step_end, expansion.stop
        if self._may_end(tokens[-1], step_end, stop):
            text = body = self._text(expansion, tokens)
            if stop is not None and stop in self._tail(expansion, stop) + text:
                return "end", text
            while (body := body.lstrip()).startswith(step_end):
                body = body[len(step_end) :]  # A delimiter with no text before it does not end the step.
            if step_end in body:
                return "step", text.rstrip(_PARTIAL)
        if len(tokens) >= expansion.max_tokens:
            return "length", self._text(expansion, tokens).rstrip(_PARTIAL)
        return None

    def _may_end(self, token: int, step_end: str, stop: str | None) -> bool:
        """Return whether a delimiter may end in this token. Saves decoding the text of every step at every token."""
        last_chars = step_end[-1] + (stop or "")[-1:] + _PARTIAL
        if (token, last_chars) not in self._may_end_of:
            # Decoded twice over: some tokenizers drop the space that the first token begins with.
            text = str(self._tokenizer.decode([token, token]))
            self._may_end_of[token, last_chars] = not set(last_chars).isdisjoint(text)
        return self._may_end_of[token, last_chars]

    def _tail(self, expansion: Expansion, stop: str) -> str:
        """Return the end of the parent step's text, in which `stop` may begin; nothing if the parent is the prompt."""
        reach = len(stop) - 1
        return self._decode(expansion.prefix[-reach:])[-reach:] if reach and expansion.parent else ""

    def _text(self, expansion: Expansion, tokens: Sequence[int]) -> str:
        """Return the text of a step, without the end token."""
        context = self._context(expansion.prefix)
        if tokens[-1] in self.end_tokens:
            tokens = tokens[:-1]
        # A character that begins in the context and ends here belongs to this step.
        above = self._decode(context).rstrip(_PARTIAL)
        return self._decode([*context, *tokens])[len(above) :]

    def _context(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """Return the last few tokens of a prefix; more of them where these hold nothing but parts of characters."""
        count = _CONTEXT_TOKENS
        while count < len(prefix) and set(self._decode(prefix[-count:])) == {_PARTIAL}:
            count *= 2
        return prefix[-count:]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode([*tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False))


def end_tokens_of(named: Any, tokenizer: Any) -> frozenset[int]:
    """Return all tokens that end a solution: `named`, the `eos_token_id` of a config, and the tokenizer's eos token.

    Raises BackendError if there are none.
    """
    listed = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    found = frozenset(token for token in listed if isinstance(token, int))
    if not found:
        raise BackendError("the policy has no end token (eos_token_id): its solutions would never finish")
    return found
