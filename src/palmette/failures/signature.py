"""The signature of a failure: patterns in a log, the cause they stand for, and what to do with the numbers in them."""

import re
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Signature(BaseModel):
    """How a failure looks and what it means.

    A text matches if every pattern of `all` is found in it, and one of `any` if there are some, and none of `none`.
    These are lines that programs write. Where no signature matches by them, `words` are tried: how people tell of it.
    Named groups are numbers or words of the failure; `at_least` names two of them, of which the first must not be the
    smaller one. Of several signatures that match, the one with the largest `weight` tells the cause. `advice` has
    `{name}` for a group; a line whose groups were not found is left out. `plan` names what is planned again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ignored_types=(cached_property,))

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    cause: str = Field(min_length=1)
    all: list[str] = Field(default_factory=list)
    any: list[str] = Field(default_factory=list)
    none: list[str] = Field(default_factory=list)
    words: list[str] = Field(default_factory=list)
    at_least: list[str] = Field(default_factory=list)
    weight: float = Field(gt=0)
    advice: list[str] = Field(min_length=1)
    plan: str | None = None
    practice: str | None = None

    @field_validator("all", "any", "none", "words")
    @classmethod
    def _compilable(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            re.compile(pattern)
        return patterns

    @cached_property
    def patterns(self) -> tuple[tuple[re.Pattern[str], ...], ...]:
        """The patterns of `all`, `any`, `none` and `words`, which ignore the case of letters."""
        groups = (self.all, self.any, self.none, self.words)
        return tuple(tuple(re.compile(text, re.IGNORECASE) for text in group) for group in groups)
