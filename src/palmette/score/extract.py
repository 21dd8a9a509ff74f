r"""Extracts the final answer from the text of a solution.

Solutions come from a model and may be truncated, repetitive or megabytes long: each function reads the text a fixed
number of times, so its time is linear in the length.
"""

import re

# An escaped character is one token, so that the braces of `\{1, 2\}` do not count. The backslash of `\boxed` is
# optional: some models write two, and the pair is read as an escaped backslash.
_BRACE_TOKEN = re.compile(r"\\?\b(?P<box>boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_HASHES = "####"
# `A:` counts only at the start of a line, with or without Markdown stars; `answer is` counts anywhere.
_MARKER = re.compile(
    r"^[ \t]*(?:\*\*)?A(?:\*\*)?:|\banswer(?:\*\*)?(?::|[ \t]*=|[ \t]+is\b)", re.IGNORECASE | re.MULTILINE
)
# A power, a mixed number, a time of day are one number each; what stands behind `^` or `_` is none of its own.
_DIGITS = r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = re.compile(
    rf"""[\^_]\s?\{{?\s?-?[0-9][0-9.,]* | (?P<number>(?:(?<![\w)])[-\u2212])?[$€£]?(?:
        [0-9]{{1,2}}:[0-9]{{2}}(?::[0-9]{{2}})?(?![0-9])(?:\s?[ap]\.?m(?![A-Za-z]))?
        | [0-9]{{1,9}}[ ][0-9]{{1,9}}/[0-9]+
        | (?:{_DIGITS}\s?(?:x|\u00d7|\*|\\times|\\cdot)\s?)?{_DIGITS}\s?\^\s?(?:-?[0-9]+|\{{-?[0-9]+\}})
        | {_DIGITS}(?:[eE][-+]?[0-9]+(?!\w)|(?:/[0-9]+)?%?)
    ))""",
    re.VERBOSE | re.IGNORECASE,
)


def extract_answer(solution: str) -> str | None:
    r"""Return the final answer of a solution, or None if there is none.

    Tries in this order and returns the first that exists: the last closed `\boxed{...}`, the text after the last
    `####`, the text after the last `A:`, `Answer:` or `answer is`, the last number.
    """
    return _last_boxed(solution) or _after_hashes(solution) or _after_marker(solution) or _last_number(solution)


def extract_reference(reference: str) -> str:
    """Return the final answer of a reference: what follows `####`, or `A:` on the last line, else the whole text."""
    last_line = reference.rstrip().rpartition("\n")[2].strip()
    after_a = last_line[2:].strip() if last_line.startswith("A:") else ""
    return _after_hashes(reference) or after_a or reference.strip()


def _last_boxed(text: str) -> str | None:
    """Return the content of the last box that is closed and not empty, or None."""
    if "boxed" not in text and "fbox" not in text:
        return None
    openings: list[tuple[int, bool]] = []  # for each open brace: where its content starts, whether it belongs to a box
    best_start, best = -1, None
    for token in _BRACE_TOKEN.finditer(text):
        if token["box"]:
            openings.append((token.end(), True))
        elif token[0] == "{":
            openings.append((token.end(), False))
        elif token[0] == "}" and openings:
            start, is_box = openings.pop()
            if is_box and start > best_start and (inside := text[start : token.start()].strip()):
                best_start, best = start, inside
    return best


def _after_hashes(text: str) -> str | None:
    """Return what follows the last `####`, or None."""
    _, hashes, rest = text.rpartition(_HASHES)
    return _first_line(rest) if hashes else None


def _after_marker(text: str) -> str | None:
    """Return what follows the last marker on its line, or else on the next line with text; None without a marker."""
    end = None
    for marker in _MARKER.finditer(text):
        end = marker.end()
    return None if end is None else _first_line(text[end:])


def _first_line(rest: str) -> str | None:
    """Return the first sentence of the first line with text, without Markdown stars and punctuation at the end."""
    line = rest.lstrip(" \t\r\n*:").partition("\n")[0]
    sentence = line.partition(". ")[0]
    return sentence.strip().strip("*`").rstrip(" .,;\t\r") or None


def _last_number(text: str) -> str | None:
    """Return the last number as written, with its sign, currency sign and percent sign, or None."""
    last = None
    for number in _NUMBER.finditer(text):
        last = number["number"] or last
    return None if last is None else last.rstrip(",")
