"""A practice: a rule with its reason, measurement and source, its check, and examples that break and keep it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Measured(_Table):
    """What was measured here, and the command that measures it again."""

    command: str = Field(min_length=1)
    number: str = Field(min_length=1)


class CheckCall(BaseModel):
    """A check by the name of its function, with the arguments that stand beside the name."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the check is called with beside its subject."""
        return dict(self.__pydantic_extra__ or {})


class Example(_Table):
    """Something that a practice can be checked against; what is empty is not part of it.

    `config` has settings of palmette by dotted key (`trains` tells whether it is one of training), `foreign` those of
    another library, `commands` lines of a shell, `request` the body of a request to a server. A run is given by the
    numbers of its updates, by its finished questions and by the peaks of its phases.
    """

    config: dict[str, Any] | None = None
    trains: bool = False
    foreign: dict[str, Any] = Field(default_factory=dict)
    commands: list[str] = Field(default_factory=list)
    request: dict[str, Any] | None = None
    code: str = ""
    updates: list[dict[str, float]] = Field(default_factory=list)
    questions: list[dict[str, Any]] = Field(default_factory=list)
    peaks: list[dict[str, Any]] = Field(default_factory=list)


class Practice(_Table):
    """One practice. `settings` are the config keys that it is about, in palmette and elsewhere: they find it."""

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    rule: str = Field(min_length=1)
    why: str = Field(min_length=1)
    measured: Measured
    source: str = Field(min_length=1)
    not_when: str = Field(min_length=1)
    settings: list[str] = Field(default_factory=list)
    check: CheckCall
    breaks: Example
    keeps: Example
