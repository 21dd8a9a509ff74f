"""Looks things up: practices, pages of the documentation, config keys, published defaults."""

import math
import re
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml
from pydantic import BaseModel, Field

import palmette
from palmette.config import OTHER_WORDS, known_keys
from palmette.failures.find import signatures
from palmette.practices.find import page, practice, practices
from palmette.units import one_line

_MOST = 6
_SHOWN = 700
_SMALL = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can do does for from has have how i in is it its my not of on or so that the then "
        "this to was what when where which why will with you",
    )
)


class Citation(BaseModel):
    """A place that answers a question: what it is, its text, how it was measured."""

    id: str = Field(description="practice://ID, a page of docs/, a config key, or failure:ID")
    title: str
    text: str
    measured: str = ""


class Answer(BaseModel):
    """What is known about a question, the best place first."""

    answer: str
    citations: list[Citation]


class Page(BaseModel):
    """A page in Markdown."""

    page_id: str
    markdown: str


class PracticeLine(BaseModel):
    """One practice in a list."""

    id: str
    rule: str
    measured: str
    settings: list[str]


class Practices(BaseModel):
    """All practices, or those about a topic."""

    practices: list[PracticeLine]


class Prior(BaseModel):
    """A published default beside what palmette does."""

    algorithm: str
    setting: str
    published: str
    range: str
    source: str
    here: str


class Priors(BaseModel):
    """Published defaults with their sources."""

    priors: list[Prior]


def words_of(text: str) -> list[str]:
    """Return the words of a text in small letters without an s at the end, small words left out."""
    return [word.rstrip("s") or word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _SMALL]


def warm() -> None:
    """Read all that is searched, so that the first question does not wait for it."""
    _rarity()


def search_knowledge(query: str, context: str = "") -> Answer:
    """Return the places that fit the words of a question best; the context counts less."""
    wanted = Counter(words_of(query)) + Counter(words_of(query)) + Counter(words_of(context)[:200])
    found = _ranked(wanted)
    if not found:
        return Answer(answer="nothing is known about these words; list_practices shows what there is", citations=[])
    best = found[0]
    told = f"{best.text} Measured: {best.measured}" if best.measured else best.text
    return Answer(answer=one_line(told, _SHOWN), citations=found)


def get_page(page_id: str) -> Page:
    """Return a practice as a page. Raises ConfigError for an id that is none."""
    id = page_id.removeprefix("practice://").strip()
    return Page(page_id=id, markdown=page(practice(id)))


def list_practices(topic: str = "") -> Practices:
    """Return the practices whose text has all words of a topic; all without one."""
    wanted = set(words_of(topic))
    lines = [
        PracticeLine(
            id=one.id, rule=one.rule, measured=f"{one.measured.number} ({one.measured.command})", settings=one.settings
        )
        for one in practices().values()
        if wanted <= set(words_of(f"{one.id} {one.rule} {one.why} {' '.join(one.settings)}"))
    ]
    return Practices(practices=lines)


def query_hyperparameter_priors(query: str) -> Priors:
    """Return the published defaults that a question is about; all where it is about none."""
    wanted = set(words_of(query.replace("reinforce++", "reinforce plus plus")))
    rows = _priors()
    scored = [(sum(word in wanted for word in words_of(f"{row.algorithm} {row.setting}")), row) for row in rows]
    named = [row for row in rows if set(words_of(row.algorithm)) <= wanted]
    both = [row for _, row in sorted(((score, row) for score, row in scored if score > 1), key=lambda pair: -pair[0])]
    some = [row for score, row in scored if score]
    return Priors(priors=list(dict.fromkeys([*both, *named])) or some or rows)


@cache
def _priors() -> list[Prior]:
    rows = yaml.safe_load(files("palmette.agents.tools").joinpath("priors.yaml").read_text(encoding="utf-8"))
    return [_Row.model_validate(row) for row in rows]


class _Row(Prior):
    model_config = {"frozen": True}


@cache
def _places() -> list[tuple[Citation, Counter[str]]]:
    found = [
        Citation(id=f"practice://{one.id}", title=one.rule, text=f"{one.rule} {one.why}",
                 measured=f"{one.measured.number} ({one.measured.command})")
        for one in practices().values()
    ]  # fmt: skip
    found += [
        Citation(id=f"failure:{one.id}", title=one.cause, text=f"{one.cause} {' '.join(one.advice)}")
        for one in signatures()
    ]
    others = {key: [word for word, meant in OTHER_WORDS.items() if meant == key] for key in OTHER_WORDS.values()}
    found += [
        Citation(
            id=key,
            title=f"config key {key}",
            text=f"{key}: docs/config.md. Elsewhere: {', '.join(others.get(key, [])) or '-'}",
        )
        for key in known_keys()
    ]
    found += _sections()
    extra = {f"practice://{one.id}": " ".join([one.id, *one.settings, one.source]) for one in practices().values()}
    return [(one, Counter(words_of(f"{one.title} {one.title} {one.text} {extra.get(one.id, '')}"))) for one in found]


def _sections() -> list[Citation]:
    """Return the sections of docs/, where the package runs from its repository."""
    folder = Path(palmette.__file__).resolve().parents[2] / "docs"
    found = []
    for path in sorted(folder.glob("*.md")) if (folder / "practices.md").is_file() else []:
        if path.name in ("practices.md", "architecture.md", "reference.md"):
            continue
        title, _, rest = path.read_text(encoding="utf-8").partition("\n")
        for part in re.split(r"\n(?=## )", rest):
            head, _, body = part.strip().partition("\n")
            name = f"{title.lstrip('# ')}: {head.lstrip('# ')}" if head.startswith("## ") else title.lstrip("# ")
            found.append(Citation(id=f"docs/{path.name}", title=name, text=one_line(body.strip() or head, 2000)))
    return found


@cache
def _rarity() -> dict[str, float]:
    places = _places()
    seen = Counter(word for _, words in places for word in words)
    return {word: math.log(1 + len(places) / count) for word, count in seen.items()}


def _ranked(wanted: Counter[str]) -> list[Citation]:
    """Return the best places by BM25, practices a little before pages of the same weight."""
    rarity, scored = _rarity(), []
    for one, words in _places():
        length = 0.25 + 0.75 * sum(words.values()) / 80
        score = sum(
            rarity[word] * count * words[word] * 2.2 / (words[word] + 1.2 * length)
            for word, count in wanted.items()
            if word in words
        )
        if score:
            scored.append((score * (1.3 if one.measured else 1.0), one))
    scored.sort(key=lambda pair: -pair[0])
    return [one.model_copy(update={"text": one_line(one.text, _SHOWN)}) for _, one in scored[:_MOST]]
