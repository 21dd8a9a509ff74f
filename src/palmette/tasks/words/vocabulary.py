"""Every word, sign and digit that can come in a question or a solution: what a tokenizer of its own is built from."""

import re

from palmette.settings import TaskSettings
from palmette.tasks.task import read_format
from palmette.tasks.words import wordings
from palmette.tasks.words.lexicon import CONTAINERS, COUNTED, PEOPLE, PLACES
from palmette.tasks.words.problem import SIGNS

_SLOT = re.compile(r"\{\w+\}")
PIECE = re.compile(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]")
"""A word, a digit or a sign. Texts of the task are such pieces, spaces and line breaks."""


def vocabulary() -> tuple[str, ...]:
    """Return every piece as it is written, in the order of their characters; numbers are written digit by digit.

    The words of the task's own prompt are among them.
    """
    groups = (wordings.FACTS, wordings.ASKS, wordings.STEPS)
    forms = [form for group in groups for told in group.values() for form in told]
    forms += [*wordings.GOALS, wordings.ANSWER, read_format("words", TaskSettings(name="words")).prompt]
    pieces = {piece for form in forms for piece in PIECE.findall(_SLOT.sub(" ", form))}
    names = {*PEOPLE, *PLACES, *COUNTED, *CONTAINERS.values(), "the", "The"}
    return tuple(sorted(pieces | names | set("0123456789=") | set(SIGNS.values())))
