"""Lays out a question with its steps as a profile says: segments of text, trusted and untrusted ones told apart."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from palmette.errors import BackendError
from palmette.profiles.profile import QUESTION, Profile

_MARK = "\ue000"  # From Unicode's private use area, which no chat template writes.


class Segment(NamedTuple):
    """A part of the text: `frame` is the profile's or the template's own, `question` and `step` are untrusted."""

    kind: Literal["frame", "question", "step", "tag"]
    text: str


def tagged_parts(profile: Profile, steps: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the parts of all steps that get a tag, and for each step the number of its last one.

    A step without text has none of its own, and counts with the one before it. There is always one part, if an empty
    one.
    """
    parts: list[str] = []
    last: list[int] = []
    for step in steps:
        for part in step.split(profile.split) if profile.split else [step]:
            text = (part.replace("\n", " ") if profile.line_breaks == "spaces" else part).strip()
            parts += [text] if text else []
        last.append(max(0, len(parts) - 1))
    return parts or [""], last


class Layout:
    """The layout of a profile. What a chat template puts around messages is asked for once for each number of turns."""

    def __init__(self, profile: Profile, tokenizer: Any) -> None:
        self._profile = profile
        self._tokenizer = tokenizer
        self._frames_of: dict[int, list[str]] = {}

    def segments(self, question: str, parts: Sequence[str]) -> list[Segment]:
        """Return the segments of a question and at least one part. Raises BackendError if the chat template fails."""
        return list(self._all(question, parts))

    def _all(self, question: str, parts: Sequence[str]) -> Iterator[Segment]:
        profile = self._profile
        before, _, after = profile.prompt.partition(QUESTION)
        first, *frames = self._frames(len(parts))
        yield from (Segment("frame", first + before), Segment("question", question), Segment("frame", after))
        for number, part in enumerate(parts):
            if profile.layout == "turns":
                yield Segment("frame", frames[2 * number - 1] if number else "")
            else:
                yield Segment("frame", profile.between if number else frames[0])
            yield Segment("step", part)
            yield Segment("frame", frames[2 * number] if profile.layout == "turns" else "")
            yield Segment("tag", profile.tag)
        yield Segment("frame", frames[-1])

    def _frames(self, parts: int) -> list[str]:
        """Return what stands before the first message's content, between contents, and behind the last."""
        if self._profile.layout == "text":
            return ["", "", ""]
        turns = parts if self._profile.layout == "turns" else 1
        if turns not in self._frames_of:
            self._frames_of[turns] = self._template_frames(turns)
        return self._frames_of[turns]

    def _template_frames(self, turns: int) -> list[str]:
        roles = ["user", "assistant"] * turns
        messages = [{"role": role, "content": f"{_MARK}{place}{_MARK}"} for place, role in enumerate(roles)]
        if self._profile.system is not None:
            messages.insert(0, {"role": "system", "content": self._profile.system})
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception as error:
            raise BackendError(f"the reward model's chat template fails: {error}") from error
        pieces = text.split(_MARK)
        if pieces[1::2] != [str(place) for place in range(len(roles))]:
            raise BackendError("the reward model's chat template does not give the messages as they are, in order")
        return list(pieces[::2])
