"""From the text of a failure to its cause, by the signatures of known failures; nothing in the text is executed."""

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass

from palmette.agents.doctor.facts import bytes_of, derived, facts_of, readable
from palmette.agents.doctor.planned_again import planned_again
from palmette.failures.find import signatures
from palmette.failures.signature import Signature
from palmette.units import one_line

_MOST_OTHERS = 3
_ERROR = re.compile(r"(?:error|exception|killed|failed|fatal)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a failure: `id` and `cause`, None for a text that is not known.

    `evidence` is the line that tells it, `numbers` what was read out of the text, `advice` what to do, `planned` a
    setting that was planned again and fits, `practice` the practice behind it, `others` further signatures that match.
    """

    id: str | None
    cause: str
    evidence: str
    numbers: Mapping[str, str]
    advice: tuple[str, ...]
    planned: str | None = None
    practice: str | None = None
    others: tuple[str, ...] = ()


def diagnose(log: str) -> Diagnosis:
    """Return the likeliest cause of a failure by its text."""
    text = readable(log)
    facts = facts_of(text)
    found = _found(text, by_words=False) or _found(text, by_words=True)
    if not found:
        return Diagnosis(None, "not a known failure", _last_error(text), facts, ())
    signature, (line, groups) = found[0]
    numbers = {**facts, **groups}
    numbers |= derived(numbers)
    return Diagnosis(
        id=signature.id,
        cause=signature.cause,
        evidence=line,
        numbers=numbers,
        advice=tuple(filter(None, (_filled(advice, numbers) for advice in signature.advice))),
        planned=planned_again(signature.plan, numbers) if signature.plan else None,
        practice=signature.practice,
        others=tuple(other.id for other, _ in found[1 : 1 + _MOST_OTHERS]),
    )


def _found(text: str, *, by_words: bool) -> list[tuple[Signature, tuple[str, dict[str, str]]]]:
    """Return the signatures that match, the weightiest first, each with its line and groups."""
    pairs = ((signature, _match(signature, text, by_words=by_words)) for signature in signatures())
    found = [(signature, match) for signature, match in pairs if match is not None]
    return sorted(found, key=lambda pair: -pair[0].weight)


def _match(signature: Signature, text: str, *, by_words: bool) -> tuple[str, dict[str, str]] | None:
    """Return the line that a signature was found in, with its groups; None where it does not match."""
    every, some, never, words = signature.patterns
    if by_words:
        every, some = (), words
    required = [pattern.search(text) for pattern in every]
    either = [match for match in (pattern.search(text) for pattern in some) if match]
    if not all(required) or ((some or by_words) and not either) or any(pattern.search(text) for pattern in never):
        return None
    matches = [match for match in (*required, *either) if match is not None]
    groups = {name: one_line(value, 400) for match in matches for name, value in match.groupdict().items() if value}
    if signature.at_least:
        larger, smaller = (bytes_of(groups.get(name)) for name in signature.at_least)
        if larger is None or smaller is None or larger < smaller:
            return None
    told = (either or matches)[0]
    start, end = text.rfind("\n", 0, told.start()) + 1, text.find("\n", told.end())
    return one_line(text[start : end if end >= 0 else len(text)].strip(), 400), groups


def _filled(advice: str, numbers: Mapping[str, str]) -> str | None:
    """Return a line of advice with its numbers; None where one of them was not found."""
    names = [name for _, name, _, _ in string.Formatter().parse(advice) if name]
    if not all(name in numbers for name in names):
        return None
    return advice.format_map(numbers)


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if _ERROR.search(line)]
    return one_line(lines[-1].strip(), 400) if lines else ""
