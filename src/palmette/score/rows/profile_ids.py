"""Looks up the tokens of a profile in a tokenizer, and tells where the two do not fit each other."""

from dataclasses import dataclass
from typing import Any

from palmette.errors import ConfigError
from palmette.profiles.profile import Profile

TEST_STEP = "2 + 2 = 4"
"""A step that is tokenized with the tag behind it, to find out which token the tag becomes."""


@dataclass(frozen=True)
class Ids:
    """The tokens of a profile: its tag, and where the score is read from two tokens, these."""

    tag: int
    good: int | None = None
    bad: int | None = None


class MismatchError(ConfigError):
    """A profile does not fit a tokenizer."""


def find_ids(profile: Profile, tokenizer: Any) -> Ids:
    """Return the profile's tokens. Raises MismatchError for a text that is not one token, or not the one recorded."""
    alone = profile.tokenized == "apart" or profile.layout == "turns"
    tag = _single(tokenizer, profile.tag, "the tag") if alone else _behind(tokenizer, profile.tag)
    _compare("the tag", profile.tag, tag, profile.tag_id)
    read = profile.read
    if read.kind != "tokens":
        return Ids(tag)
    good, bad = _single(tokenizer, read.good, "the good token"), _single(tokenizer, read.bad, "the bad token")
    _compare("the good token", read.good, good, read.good_id)
    _compare("the bad token", read.bad, bad, read.bad_id)
    if good == bad:
        raise MismatchError(f"{read.good!r} and {read.bad!r} are the same token, {good}")
    return Ids(tag, good, bad)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text alone, without those that the tokenizer adds."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def _single(tokenizer: Any, text: str, what: str) -> int:
    return _only(encode(tokenizer, text), text, what, tokenizer)


def _behind(tokenizer: Any, tag: str) -> int:
    """Return the token that a tag becomes behind a step."""
    step, both = encode(tokenizer, TEST_STEP), encode(tokenizer, TEST_STEP + tag)
    if both[: len(step)] != step:
        raise MismatchError(f"the tag {tag!r} changes the tokens of the step before it")
    return _only(both[len(step) :], tag, "the tag", tokenizer)


def _only(tokens: list[int], text: str, what: str, tokenizer: Any) -> int:
    if len(tokens) != 1:
        raise MismatchError(f"{what} {text!r} is {len(tokens)} tokens, not one")
    if tokens[0] == tokenizer.unk_token_id:
        raise MismatchError(f"{what} {text!r} is unknown to it")
    return tokens[0]


def _compare(what: str, text: str, found: int, recorded: int | None) -> None:
    if recorded is not None and found != recorded:
        raise MismatchError(f"{what} {text!r} is token {found}, the profile records {recorded}")
