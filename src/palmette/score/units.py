"""The units that may follow a number in an answer: measures by their spellings, and things that are counted.

Only what is listed here is ever removed from an answer, and never a digit but the power of a unit: `7 remainder 2`,
`5 times 2` and `1 to 2` are no numbers with a unit.
"""

import re
from dataclasses import dataclass

_MEASURES = {
    "millimeter": "mm millimeters", "centimeter": "cm cms centimeters", "meter": "meters metre metres",
    "kilometer": "km kms kilometers", "inch": "in in. inches", "foot": "ft ft. feet", "yard": "yd yds yards",
    "mile": "mi miles mph", "milligram": "mg milligrams", "gram": "grams gm", "kilogram": "kg kgs kilos kilo kilograms",
    "ounce": "oz oz. ounces", "pound": "lb lb. lbs lbs. pounds", "ton": "tons", "milliliter": "ml milliliters",
    "liter": "liters litre litres", "teaspoon": "tsp teaspoons", "tablespoon": "tbsp tablespoons", "cup": "cups",
    "pint": "pints", "quart": "quarts", "gallon": "gal gallons", "acre": "acres", "hectare": "hectares",
    "second": "sec sec. secs seconds", "minute": "min min. mins minutes", "hour": "hr hr. hrs hours", "day": "days",
    "week": "weeks wk wks", "month": "months", "year": "years yr yrs", "decade": "decades", "century": "centuries",
    "am": "a.m. a.m", "pm": "p.m. p.m", "dollar": "dollars usd bucks", "cent": "cents", "penny": "pennies",
    "nickel": "nickels", "dime": "dimes", "euro": "euros eur", "peso": "pesos", "degree": "degrees deg",
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
_WORD = re.compile(r"\s*([A-Za-z][A-Za-z.]*)(?:(?:\s*\^)?([23])(?![0-9]))?")
_MOST_WORDS = 8
_BEFORE = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3}
_BETWEEN = {"per", "a", "an", "each", "every", "of"}
_AFTER = {"each", "total", "altogether", "left", "remaining", "old", "long", "tall", "wide", "high", "deep", "away"}


@dataclass(frozen=True)
class Unit:
    """A unit by its usual name and its power: square inches are `inch`, 2."""

    name: str
    power: int = 1

    @property
    def changes_value(self) -> bool:
        """Whether the number without the unit would be another answer: `5 pm` is not `5 am`."""
        return self.name in ("am", "pm")

    def contradicts(self, other: "Unit") -> bool:
        """Return whether both are measures and not the same: feet and inches, but not eggs and a number of them."""
        return self != other and self.name in _MEASURES and other.name in _MEASURES


def read_unit(text: str) -> Unit | None:
    """Return the unit that a text consists of, None if it is anything else: ` cm^2`, ` eggs per day`, ` cups of water`.

    Directly after a number, without a space, only measures count.
    """
    place, power = 0, 1
    named: list[Unit] = []
    while match := _WORD.match(text, place):
        word, place = match[1].lower(), match.end()
        word = word if word in _BY_SPELLING or word in _BEFORE else word.rstrip(".")
        if match[2] and word not in _NO_SPACE:
            return None
        if not named and word in _BEFORE:
            power = _BEFORE[word]
        elif word in _BY_SPELLING and (named or text[0].isspace() or word in _NO_SPACE):
            named.append(Unit(_BY_SPELLING[word], int(match[2] or power)))
        elif not named or word not in _BETWEEN | _AFTER:
            return None
    return named[0] if named and not text[place:].strip(" .") else None


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Return an expression such as `12\pi \text{ cm}^2` or `12\pi square inches` without its unit, and the unit.

    A unit that changes the value stays where it is.
    """
    bare = text.rstrip(" .$")
    match = _TEXT_AT_END.search(bare)
    if match:
        candidates = [(match.start(), f" {match[1].strip()}" + (f"^{match[2]}" if match[2] else ""))]
    else:
        starts = [space.start() for space in re.finditer(r"(?<=\S)\s+(?=[A-Za-z])", bare)]
        candidates = [(start, bare[start:]) for start in starts[-_MOST_WORDS:]]
    for start, words in candidates:
        unit = read_unit(words)
        if start and unit and not unit.changes_value:
            return bare[:start], unit
    return text, None


_TEXT_AT_END = re.compile(r"\s*\\(?:text|mbox|mathrm)\s*\{([^{}]*)\}(?:\s*\^\{?([23])\}?)?$")


def usual_name(word: str) -> str:
    """Return the usual name of a unit, any other word unchanged."""
    return _BY_SPELLING.get(word, word)
