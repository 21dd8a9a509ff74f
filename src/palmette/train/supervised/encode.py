"""Rows as tokens: a prompt as the policy is asked, then what is learned, in the tokens that a search would see."""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from palmette.backends.backend import Message
from palmette.backends.chat import encode_text, render
from palmette.errors import BackendError, ConfigError
from palmette.settings import DataSettings
from palmette.train.samples import Sample
from palmette.train.supervised.rows import Conversation, LabeledSteps


@dataclass(frozen=True)
class Text:
    """A prompt and what is learned after it, four bytes a token.

    `labels` maps places among the tokens to labels: what the model is to say of the text up to that place. None: the
    tokens after the prompt are learned themselves.
    """

    tokens: "array[int]"
    prompt_tokens: int
    labels: tuple[tuple[int, float], ...] | None = None

    def sample(self, group: int, prompt_weight: float = 0.0) -> Sample:
        """Return the sample that a learner takes; with labels, the token after each labeled place counts.

        Advantages are the weights of tokens. Those of a prompt with weight are learned too, but for its first one.
        """
        begin = 1 if prompt_weight and self.labels is None else self.prompt_tokens
        prompt, response = tuple(self.tokens[:begin]), tuple(self.tokens[begin:])
        if self.labels is None:
            asked = self.prompt_tokens - begin
            weights = (prompt_weight,) * asked + (1.0,) * (len(response) - asked)
            return Sample(prompt, response, weights, group=group)
        counted = {place + 1 - self.prompt_tokens: label for place, label in self.labels}
        return Sample(
            prompt,
            response,
            (0.0,) * len(response),
            group=group,
            mask=tuple(place in counted for place in range(len(response))),
            returns=tuple(counted.get(place, 0.0) for place in range(len(response))),
        )


@dataclass(frozen=True)
class EncodedRow:
    """The texts of one row, which share their beginning. Rows with the same `key` have the same prompt."""

    place: str
    key: bytes
    texts: tuple[Text, ...]

    @property
    def tokens(self) -> int:
        """The tokens of the longest text. Others are, but for a few tokens, beginnings of it."""
        return max(len(text.tokens) for text in self.texts)


@dataclass(frozen=True)
class EncodedRows:
    """Rows as tokens, and how many were left out because they are too long."""

    rows: tuple[EncodedRow, ...]
    skipped: int

    @property
    def digest(self) -> str:
        """A hash of all tokens and labels: a run goes on with the rows that it began with."""
        found = hashlib.sha256()
        for row in self.rows:
            for text in row.texts:
                found.update(f"{text.prompt_tokens} {text.labels} ".encode())
                found.update(text.tokens.tobytes())
        return found.hexdigest()[:24]


def encode_conversation(tokenizer: Any, row: Conversation) -> tuple[Text, ...]:
    """Return a text for each answer that is learned: all messages before it as the prompt, then the answer and its end.

    Raises ConfigError for a message with a control token of the model, BackendError for a model without an end token.
    """
    end = _end_token(tokenizer)
    texts = []
    for at in row.learned:
        prompt = _prompt(tokenizer, row.messages[:at], row.place)
        answer = encode_text(tokenizer, row.messages[at]["content"])
        texts.append(Text(array("I", [*prompt, *answer, end]), len(prompt)))
    return tuple(texts)


def encode_steps(tokenizer: Any, row: LabeledSteps, separator: str) -> tuple[Text, ...]:
    """Return the texts in which a process reward model reads the steps: as a search gives them to it.

    A step that does not end with the separator gets it, the last step the model's end token instead. A step is read at
    its last token. Where the next step changes the tokens of the text before it, the beginning is a text of its own.
    """
    end = _end_token(tokenizer)
    prompt = _prompt(tokenizer, row.prompt, row.place)
    steps = [step if step.endswith(separator) else step + separator for step in row.steps[:-1]]
    steps.append(row.steps[-1])
    read: list[list[int]] = []
    for count in range(1, len(steps) + 1):
        tokens = encode_text(tokenizer, "".join(steps[:count]))
        is_end = count == len(steps) and row.finished
        read.append([*prompt, *tokens, *[end] * is_end])
    texts: list[tuple[list[int], list[tuple[int, float]]]] = []
    for tokens, label in zip(reversed(read), reversed(row.labels), strict=True):
        if not texts or texts[-1][0][: len(tokens)] != tokens:
            texts.append((tokens, []))
        texts[-1][1].append((len(tokens) - 1, label))
    return tuple(
        # The state at a token is that before the next one, so there has to be a next one: any.
        Text(array("I", [*tokens, end]), len(prompt), tuple(reversed(labels)))
        for tokens, labels in reversed(texts)
    )


AnyRow = TypeVar("AnyRow", Conversation, LabeledSteps)


def encode_rows(
    rows: Iterable[AnyRow],
    encode: Callable[[AnyRow], tuple[Text, ...]],
    settings: DataSettings,
    table: str,
    context_tokens: int | None,
) -> EncodedRows:
    """Return all rows as tokens; those that are too long are refused or left out, as `too_long` says.

    `table` is that of the settings, for errors. Raises ConfigError for a row that is too long or cannot be encoded, and
    if no row is left.
    """
    limits = [limit for limit in (settings.most_tokens, context_tokens) if limit is not None]
    most = min(limits, default=None)
    found: list[EncodedRow] = []
    skipped = 0
    for row in rows:
        encoded = EncodedRow(row.place, row.key, encode(row))
        if most is not None and encoded.tokens > most:
            if settings.too_long == "refuse":
                limit = f"{table}.most_tokens is {most}" if most == settings.most_tokens else f"the model takes {most}"
                raise ConfigError(
                    f"{row.place}: the row has {encoded.tokens} tokens, {limit}: shorten it, or set {table}.too_long "
                    f"to skip"
                )
            skipped += 1
            continue
        found.append(encoded)
    if not found:
        told = f"all {skipped} rows are longer than {most} tokens" if skipped else "there are no rows"
        raise ConfigError(f"{table}.data: {told}: nothing to train on")
    return EncodedRows(tuple(found), skipped)


def samples_of(rows: Sequence[EncodedRow], chosen: Iterable[int], prompt_weight: float = 0.0) -> list[Sample]:
    """Return the samples of these rows, a group for each."""
    return [text.sample(row, prompt_weight) for row in chosen for text in rows[row].texts]


def _prompt(tokenizer: Any, messages: Sequence[Message], place: str) -> tuple[int, ...]:
    try:
        return render(tokenizer, messages)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _end_token(tokenizer: Any) -> int:
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise BackendError("the model has no end token (eos_token_id): it could not learn where an answer ends")
    return end
