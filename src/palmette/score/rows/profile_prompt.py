"""Renders a question with its steps as a profile says: the tokens, and where the score of each step is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

from palmette.backends.backend import Message
from palmette.backends.chat import control_tokens, encode_text
from palmette.errors import BackendError, ConfigError
from palmette.profiles.profile import Profile
from palmette.score.rows.profile_ids import TEST_STEP, MismatchError, encode, find_ids
from palmette.score.rows.profile_layout import Layout, Segment, tagged_parts

_NEUTRAL = "x"

Tagged = tuple[list[int], list[int]]
"""Tokens, and the indices of the tags among them."""


@dataclass(frozen=True)
class Rendered:
    """The tokens of a question with its steps, and for each step the index of the token where its score is read."""

    tokens: tuple[int, ...]
    read_at: tuple[int, ...]


def question_of(messages: Sequence[Message]) -> str:
    """Return what the user asks: the contents of the user's messages, or of all where none is the user's."""
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return "\n\n".join(asked or [message["content"] for message in messages])


class Renderer:
    """Renders for one tokenizer. Raises ConfigError at once where profile and tokenizer do not fit each other.

    Text is tokenized as published. Where a step spells a control token, or makes a tag merge with the text around it,
    the parts are tokenized apart: a policy cannot write special tags, or turns of a chat.
    """

    def __init__(self, profile: Profile, tokenizer: Any, name: str = "the reward model") -> None:
        self._profile = profile
        self._tokenizer = tokenizer
        self._layout = Layout(profile, tokenizer)
        self._controls_of: dict[int, list[int]] = {}
        self._check_once = lru_cache(maxsize=1024)(self._check_question)
        try:
            self.ids = find_ids(profile, tokenizer)
            self._check_tokenizer()
        except MismatchError as error:
            raise ConfigError(
                f"reward.profile does not fit the tokenizer of {name}: {error}. Use the tokenizer that was published "
                f"with the model, or set reward.profile to another one"
            ) from error

    def render(self, question: str, steps: Sequence[str]) -> Rendered:
        """Return tokens and places of one or more steps; a step without text is read where the one before it is.

        Raises ConfigError for a question that gives a control token, BackendError where the chat template fails.
        """
        self.check_question(question)
        parts, last_parts = tagged_parts(self._profile, steps)
        segments = self._layout.segments(question.strip(), parts)
        whole = self._whole(segments) if self._profile.tokenized == "whole" else None
        tokens, tags = whole or self._apart(segments)
        if len(tags) != len(parts):
            raise BackendError(f"the reward model was given {len(parts)} steps and {len(tags)} tags")
        before = self._profile.read_at == "before_tag"
        return Rendered(tuple(tokens), tuple(tags[part] - before for part in last_parts))

    def check_question(self, question: str) -> None:
        """Raise ConfigError for a question that gives a control token of the model, by itself or with its frame."""
        self._check_once(question)

    def _check_question(self, question: str) -> None:
        controls = control_tokens(self._tokenizer)
        held = next((controls[token] for token in encode(self._tokenizer, question) if token in controls), None)
        if held is not None:
            raise ConfigError(f"a question holds {held!r}, a control token of the model: take it out of the text")
        heads = [_head(self._layout.segments(text, [_NEUTRAL])) for text in (question.strip(), _NEUTRAL)]
        given, neutral = ([token for token in encode(self._tokenizer, head) if token in controls] for head in heads)
        if given != neutral:
            raise ConfigError("the question's text completes a control token of the reward model: change the text")

    def _check_tokenizer(self) -> None:
        """Raise MismatchError unless two steps can be tokenized as published."""
        profile, tokenizer = self._profile, self._tokenizer
        if profile.layout != "text" and not tokenizer.chat_template:
            raise MismatchError(f"the layout {profile.layout} needs a chat template, and it has none")
        if profile.bos == "required" and tokenizer.bos_token_id is None:
            raise MismatchError("texts have to begin with its bos token, and it has none")
        if profile.tokenized == "whole" and not tokenizer.is_fast:
            raise MismatchError("it cannot tell which characters a token stands for: it needs a tokenizer.json")
        segments = self._layout.segments(TEST_STEP, [TEST_STEP, TEST_STEP])
        if profile.tokenized == "whole" and self._whole(segments) is None:
            raise MismatchError(f"the tag {profile.tag!r} merges with the text around it")

    def _whole(self, segments: Sequence[Segment]) -> Tagged | None:
        """Return the tokens of the whole text and the tags among them.

        None where a tag is not a token of its own, or untrusted text has become a control token.
        """
        tokens, ends = self._tokens_and_ends(segments)
        controls = control_tokens(self._tokenizer)
        count = len(segments)
        if count not in self._controls_of:
            neutral = [Segment(kind, _NEUTRAL if kind in ("question", "step") else text) for kind, text in segments]
            self._controls_of[count] = [token for token in self._tokens_and_ends(neutral)[0] if token in controls]
        if [token for token in tokens if token in controls] != self._controls_of[count]:
            return None
        tags: list[int] = []
        index = position = 0
        for kind, text in segments:
            position += len(text)
            if kind == "tag":
                while index < len(tokens) and ends[index] < position:
                    index += 1
                if index == len(tokens) or ends[index] != position or tokens[index] != self.ids.tag:
                    return None
                tags.append(index)
        return tokens, tags

    def _tokens_and_ends(self, segments: Sequence[Segment]) -> Tagged:
        """Return the tokens of the whole text, and for each the number of characters up to its end."""
        text = "".join(segment.text for segment in segments)
        begun = self._beginning()
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [*begun, *found["input_ids"]], [*(0 for _ in begun), *(end for _, end in found["offset_mapping"])]

    def _apart(self, segments: Sequence[Segment]) -> Tagged:
        """Return tokens and tags with every part tokenized by itself; all before the first step is one part."""
        head = _head(segments)
        tokens = [*self._beginning(), *encode(self._tokenizer, head)]
        tags: list[int] = []
        for kind, text in segments[_start(segments) :]:
            if kind == "tag":
                tags.append(len(tokens))
                tokens.append(self.ids.tag)
            else:
                tokens += encode_text(self._tokenizer, text) if kind == "step" else encode(self._tokenizer, text)
        return tokens, tags

    def _beginning(self) -> list[int]:
        """Return the bos token where the profile puts one before the text, or the tokenizer does by itself."""
        bos = self._tokenizer.bos_token_id
        if self._profile.layout != "text" or bos is None:
            return []
        adds = self._profile.bos != "default" or list(self._tokenizer.encode(_NEUTRAL))[:1] == [bos]
        return [int(bos)] if adds else []


def _head(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments[: _start(segments)])


def _start(segments: Sequence[Segment]) -> int:
    """Return the number of segments before the first step."""
    return sum(1 for _ in takewhile(lambda segment: segment.kind != "step", segments))
