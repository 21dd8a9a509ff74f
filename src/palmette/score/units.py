"""The units that may follow a number in an answer: measures by their spellings, and things that are counted.

Only what is listed here is ever removed from an answer, and never a digit but the power of a length: `7 remainder 2`,
`5 times 2`, `1 to 2` and `5ft3in` are no numbers with a unit.
"""

import re
from dataclasses import dataclass

_MEASURES = {
    "millimeter": "mm millimeters", "centimeter": "cm cms centimeters", "meter": "meters metre metres",
    "kilometer": "km kms kilometers", "inch": "in in. inches", "foot": "ft ft. feet", "yard": "yd yds yards",
    "mile": "mi miles", "milligram": "mg milligrams", "gram": "grams gm", "kilogram": "kg kgs kilos kilo kilograms",
    "ounce": "oz oz. ounces", "pound": "lb lb. lbs lbs. pounds gbp", "ton": "tons", "milliliter": "ml milliliters",
    "liter": "liters litre litres", "teaspoon": "tsp teaspoons", "tablespoon": "tbsp tablespoons", "cup": "cups",
    "pint": "pints", "quart": "quarts", "gallon": "gal gallons", "acre": "acres", "hectare": "hectares",
    "second": "sec sec. secs seconds", "minute": "min min. mins minutes", "hour": "hr hr. hrs hours", "day": "days",
    "week": "weeks wk wks", "month": "months", "year": "years yr yrs", "decade": "decades", "century": "centuries",
    "am": "a.m. a.m", "pm": "p.m. p.m", "dollar": "dollars usd bucks", "cent": "cents", "penny": "pennies",
    "nickel": "nickels", "dime": "dimes", "euro": "euros eur", "yen": "jpy",
    "rupee": "rupees inr", "peso": "pesos", "degree": "degrees deg",
    "radian": "radians rad", "calorie": "calories", "watt": "watts", "kilowatt": "kilowatts kw",
}  # fmt: skip
_COUNTED = re.findall(
    r"\w+",
    """
    animal apartment apple article baby bag bagel ball balloon banana bar barrel basket batch bead bean bed bee
    berry bike bill bird block boat book bottle bowl box boy brick bug bus button cake call can candle candy car
    card carrot case cat chair chicken child chip class classmate client coin cookie copy costume cow crate crayon
    cupcake customer digit dish dog donut dragon dress drink duck edge egg elephant email employee face family fish
    flight flower fly friend fruit game gift girl glass goal goat grape group guest hamster hat helmet hole homework
    horse house insect item jar jellybean kid kitten lap leg lemon lesson letter line lollipop loaf marble match
    meal meatball medal member message movie muffin mug nail night notebook number object orange order outfit
    package packet pack page painting pair pancake paper part passenger patient peach pear pen pencil penguin
    pepper person pet petal phone photo picture pie piece pig pizza plant plate player point possibility potato
    present problem prize puppy question rabbit ring robot rock room rose round row sandwich seashell seat seed
    sentence serving set sheep sheet shell shirt shoe side slice snack snail snake sock soda solution song spider
    spoon star step stick sticker stone story strawberry student subset sweet table task teacher team test thing
    ticket tile time tomato tower toy tray tree triangle trip truck unit value vegetable vehicle vertex visit
    visitor vote way wheel whale widget window woman man word worker adult
    """,
)
_STUFF = re.findall(
    r"\w+",
    """
    bread butter cake candy cereal cheese chocolate clay coffee corn dirt feed flour food fruit gas gold grass ice
    juice lemonade meat milk money oil paint paper pasta pizza rice salt sand silver soda sugar tea water wine wood
    work yarn
    """,
)
_IRREGULAR = {
    "children": "child", "people": "person", "men": "man", "women": "woman", "loaves": "loaf", "vertices": "vertex",
}  # fmt: skip


def _plurals(word: str) -> list[str]:
    if re.search(r"(?:s|x|ch|sh|o)$", word):
        return [word, f"{word}s", f"{word}es"]
    return [word, f"{word[:-1]}ies" if re.search(r"[^aeiou]y$", word) else f"{word}s"]


_BY_SPELLING: dict[str, str] = {
    **{spelling: name for name in _COUNTED for spelling in _plurals(name)},
    **_IRREGULAR,
    **{word: word for word in _STUFF},
    **{spelling: name for name, others in _MEASURES.items() for spelling in (name, *others.split())},
}
_NO_SPACE = {spelling for name, others in _MEASURES.items() for spelling in (name, *others.split())}
_WORD = re.compile(r"\s*([A-Za-z][A-Za-z.]*)(?:\s*\^([23])(?![0-9])|([23])\s*$)?")
_LENGTHS = {"millimeter", "centimeter", "meter", "kilometer", "inch", "foot", "yard", "mile"}
_SCALES_OF_DEGREES = {"celsius", "fahrenheit"}
_MOST_WORDS = 8
_BEFORE = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3}
_PER = {"per", "a", "an", "each", "every"}
_AFTER = {"each", "total", "altogether", "left", "remaining", "old", "long", "tall", "wide", "high", "deep", "away"}


@dataclass(frozen=True)
class Unit:
    """A unit by usual names and powers: square inches are (`inch`, 2); miles per hour (`mile`, 1) and (`hour`, -1).

    `of` is what is measured: `sugar` in cups of sugar, `celsius` in degrees Celsius; None if the answer does not say.
    """

    parts: tuple[tuple[str, int], ...]
    of: str | None = None

    @property
    def changes_value(self) -> bool:
        """Whether the number without the unit would be another answer: `5 pm` is not `5 am`."""
        return self.parts[0][0] in ("am", "pm")

    @property
    def measure(self) -> str:
        """The measures, and what is measured, as a text without things that are counted: `mile hour^-1`."""
        names = [name if power == 1 else f"{name}^{power}" for name, power in self.parts if name in _MEASURES]
        return " ".join([*names, *([f"of {self.of}"] if self.of else [])])

    @property
    def is_measure(self) -> bool:
        """Whether it consists of measures alone; eggs per day do not."""
        return all(name in _MEASURES for name, _ in self.parts)

    def contradicts(self, other: "Unit") -> bool:
        """Return whether the units make different answers of one number: feet and inches, hours and hours per day.

        What is counted may be left out or said otherwise: eggs and apples do not contradict each other, but eggs per
        day and eggs per week do.
        """
        if self.of and other.of and self.of != other.of:
            return True
        if self.is_measure and other.is_measure:
            return self.parts != other.parts
        pairs = zip(self.parts, other.parts, strict=False)
        return any(one != two and one[0] in _MEASURES and two[0] in _MEASURES for one, two in pairs)


def read_unit(text: str) -> Unit | None:
    """Return the unit that a text consists of, None if it is anything else: ` cm^2`, ` eggs per day`, ` cups of water`.

    Directly after a number, without a space, only measures count. A power without `^` stands at the end.
    """
    place, power, sign, after_of = 0, 1, 1, False
    parts: list[tuple[str, int]] = []
    of = None
    while match := _WORD.match(text, place):
        word, place = match[1].lower(), match.end()
        word = word if word in _BY_SPELLING or word in _BEFORE else word.rstrip(".")
        raised = match[2] or match[3]
        name = _BY_SPELLING.get(word)
        if raised and name not in _LENGTHS and not (name == "second" and match[2]):
            return None
        if word in _BEFORE and (not parts or sign < 0):
            power = _BEFORE[word]
        elif word == "mph" and not parts:
            parts += [("mile", 1), ("hour", -1)]
        elif word in _SCALES_OF_DEGREES:
            parts, of = parts or [("degree", 1)], word
        elif name and (parts or text[0].isspace() or word in _NO_SPACE):
            part = (name, sign * int(raised or power))
            if after_of:
                of = name
            elif part not in parts and (not parts or sign < 0 or name in _MEASURES):
                parts.append(part)
            power, sign, after_of = 1, 1, False
        elif parts and word in _PER | {"of"}:
            sign, after_of = (1, True) if word == "of" else (-1, False)
        elif not parts or word not in _AFTER:
            return None
    return Unit(tuple(parts), of) if parts and not text[place:].strip(" .") else None


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Return an expression such as `12\pi \text{ cm}^2` or `12\pi square inches` without its unit, and the unit.

    A unit that changes the value stays where it is.
    """
    bare = text.rstrip(" .$")
    match = _TEXT_AT_END.search(bare)
    if match:
        candidates = [(match.start(), f" {in_words(match[1])}" + (f"^{match[2]}" if match[2] else ""))]
    else:
        starts = [space.start() for space in re.finditer(r"(?<=\S)\s+(?=[A-Za-z])", bare)]
        candidates = [(start, bare[start:]) for start in starts[-_MOST_WORDS:]]
    for start, words in candidates:
        unit = read_unit(words)
        if start and unit and not unit.changes_value:
            return bare[:start], unit
    return text, None


_TEXT_AT_END = re.compile(r"\s*\\(?:text|mbox|mathrm)\s*\{([^{}]*)\}(?:\s*\^\{?([23])\}?)?$")


def in_words(text: str) -> str:
    r"""Return what stands in a `\text`, `meters` for `m`: outside of it `5m` is a product."""
    return "meters" if text.strip() == "m" else text.strip()


def usual_name(word: str) -> str:
    """Return the usual name of a unit, any other word unchanged."""
    return _BY_SPELLING.get(word, word)
