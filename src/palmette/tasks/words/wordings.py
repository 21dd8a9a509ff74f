"""Every sentence form of facts, questions and steps, as data.

Slots: {X} and {x} are holder and thing of the quantity that is told, {Y} {y} and {Z} {z} those of its operands, {n} the
number of a fact, {u} the singular of the container {y}. In steps {e} is the equation (3+4=7), {l} its left side (3+4),
{c} its result, {a} and {b} the values of the operands. A fact without {y} speaks of {x} again, one without {Y} of {X}.
A step may leave out any of its operands. Solutions are told in those of TOLD, which name first whose quantity is
calculated, then all operands with their values, so that each word is found in the fact about the name before it: a
model learns that much sooner. In GOALS {X} and {x} are what is looked for. The first form of each kind that fits is
the plain one.
"""

from palmette.tasks.words.problem import SIGNS, AskKind, FactKind

FACTS: dict[FactKind, tuple[str, ...]] = {
    "given": (
        "{X} has {n} {x}.",
        "The {x} of {X} are {n}.",
        "{X} owns {n} {x}.",
        "{X} keeps {n} {x}.",
        "There are {n} {x} of {X}.",
        "{X} has exactly {n} {x}.",
    ),
    "more": (
        "{X} has {n} more {x} than {Y} has {y}.",
        "The {x} of {X} are {n} more than the {y} of {Y}.",
        "{X} has {n} more {x} than {Y}.",
        "{X} has {n} more {x} than {y}.",
        "Compared to the {y} of {Y}, {X} has {n} more {x}.",
        "{X} keeps as many {x} as {Y} has {y}, plus {n}.",
        "Add {n} to the {y} of {Y} to get the {x} of {X}.",
    ),
    "fewer": (
        "{X} has {n} fewer {x} than {Y} has {y}.",
        "The {x} of {X} are {n} fewer than the {y} of {Y}.",
        "{X} has {n} fewer {x} than {Y}.",
        "{X} has {n} fewer {x} than {y}.",
        "Compared to the {y} of {Y}, {X} has {n} fewer {x}.",
        "{X} keeps as many {x} as {Y} has {y}, minus {n}.",
        "Take {n} from the {y} of {Y} to get the {x} of {X}.",
    ),
    "times": (
        "{X} has {n} times as many {x} as {Y} has {y}.",
        "The {x} of {X} are {n} times the {y} of {Y}.",
        "{X} has {n} times as many {x} as {Y}.",
        "{X} has {n} times as many {x} as {y}.",
        "Compared to the {y} of {Y}, {X} has {n} times as many {x}.",
        "For each of the {y} of {Y}, {X} keeps {n} {x}.",
        "Take {n} times the {y} of {Y} to get the {x} of {X}.",
    ),
    "half": (
        "{X} has half as many {x} as {Y} has {y}.",
        "The {x} of {X} are half of the {y} of {Y}.",
        "{X} has half as many {x} as {Y}.",
        "{X} has half as many {x} as {y}.",
        "Compared to the {y} of {Y}, {X} has half as many {x}.",
        "Take half of the {y} of {Y} to get the {x} of {X}.",
        "{X} keeps as many {x} as half of the {y} of {Y}.",
    ),
    "share": (
        "{X} has as many {x} as one of {n} equal shares of what {Y} has in {y}.",
        "The {x} of {X} are one of {n} equal shares of the {y} of {Y}.",
        "Split the {y} of {Y} into {n} equal shares to get the {x} of {X}.",
        "With {n} equal shares of the {y} of {Y}, one is the {x} of {X}.",
        "Each of {n} equal shares of the {y} of {Y} is the {x} of {X}.",
        "{X} has as many {x} as one of {n} equal shares of the {y} of {Y}.",
        "Split {n} ways, the {y} of {Y} are the {x} of {X}.",
    ),
    "sum": (
        "{X} has as many {x} as {Y} has {y} and {Z} has {z} together.",
        "The {x} of {X} are the {y} of {Y} plus the {z} of {Z}.",
        "{X} has as many {x} as {Y} and {Z} together.",
        "Add the {y} of {Y} to the {z} of {Z} to get the {x} of {X}.",
        "Together the {y} of {Y} and the {z} of {Z} are the {x} of {X}.",
        "{X} keeps as many {x} as the {y} of {Y} and the {z} of {Z} together.",
    ),
    "difference": (
        "{X} has as many {x} as {Y} has {y} minus what {Z} has in {z}.",
        "The {x} of {X} are the {y} of {Y} minus the {z} of {Z}.",
        "Take the {z} of {Z} from the {y} of {Y} to get the {x} of {X}.",
        "{X} keeps as many {x} as the {y} of {Y} minus the {z} of {Z}.",
        "Without the {z} of {Z}, the {y} of {Y} are the {x} of {X}.",
        "With the {z} of {Z} taken from the {y} of {Y}, we get the {x} of {X}.",
    ),
    "rate": (
        "{X} keeps all {x} in {y}, {n} in each {u}.",
        "Each {u} of {X} holds {n} {x}.",
        "Every {u} of {X} has {n} {x} in it.",
        "{X} keeps {n} {x} in each {u}.",
        "In each {u} of {X} there are {n} {x}.",
        "There are {n} {x} in every {u} of {X}.",
    ),
}

ASKS: dict[tuple[AskKind, int], tuple[str, ...]] = {
    ("one", 1): (
        "How many {x} does {X} have?",
        "How many are the {x} of {X}?",
        "What is the number of {x} of {X}?",
        "What number of {x} does {X} have?",
        "How many {x} are there of {X}?",
    ),
    ("total", 2): (
        "How many are the {x} of {X} and the {y} of {Y} together?",
        "What is the total of the {x} of {X} and the {y} of {Y}?",
        "What are the {x} of {X} plus the {y} of {Y}?",
        "In total, how many are the {x} of {X} and the {y} of {Y}?",
        "How many do we get from the {x} of {X} and the {y} of {Y} together?",
    ),
    ("total", 3): (
        "How many are the {x} of {X}, the {y} of {Y} and the {z} of {Z} together?",
        "What is the total of the {x} of {X}, the {y} of {Y} and the {z} of {Z}?",
        "What are the {x} of {X} plus the {y} of {Y} plus the {z} of {Z}?",
        "In total, how many are the {x} of {X}, the {y} of {Y} and the {z} of {Z}?",
        "How many do we get from the {x} of {X}, the {y} of {Y} and the {z} of {Z} together?",
    ),
    ("gap", 2): (
        "What are the {x} of {X} minus the {y} of {Y}?",
        "How many more {x} does {X} have than {Y} has {y}?",
        "By how many are the {x} of {X} more than the {y} of {Y}?",
        "What do we get if we take the {y} of {Y} from the {x} of {X}?",
        "How many are the {x} of {X} without the {y} of {Y}?",
    ),
}

_TOLD_FROM_ONE = (
    "For {X} we take {Y}, with {a} {y}, and get {e} {x}.",
    "Now {X}, from {Y} with {a} {y}, has {e} {x}.",
    "{X} goes by {Y}, who has {a} {y}, so {e} {x}.",
    "As for {X}, the {a} {y} of {Y} make {e} {x}.",
    "To find {X}, use {Y} with {a} {y}, so {e} {x}.",
)
_TOLD_FROM_TWO = (
    "For {X} we take {Y}, with {a} {y}, and {Z}, with {b} {z}, and get {e} {x}.",
    "Now {X}, from {Y} with {a} {y} and {Z} with {b} {z}, has {e} {x}.",
    "{X} goes by {Y}, who has {a} {y}, and {Z}, who has {b} {z}, so {e} {x}.",
    "As for {X}, the {a} {y} of {Y} and the {b} {z} of {Z} make {e} {x}.",
    "To find {X}, use {Y} with {a} {y} and {Z} with {b} {z}, so {e} {x}.",
)
_ANY = (
    "{X} has {e} {x}.",
    "So {X} has {e} {x}.",
    "The {x} of {X} are {e}.",
    "For {X} we get {e} {x}.",
    "Now {e}, so {X} has {c} {x}.",
    "{X} has {l} {x}, that is {c}.",
)
_QUOTED_FROM_ONE = (
    "{Y} has {a} {y}, so {X} has {e} {x}.",
    "The {y} of {Y} are {a}, so the {x} of {X} are {e}.",
    "With {a} {y} of {Y} we get {e} {x} for {X}.",
    "With {a} {y} of {Y}, the {x} of {X} are {e}.",
    "{Y} has {a} {y}, that makes {e} {x} for {X}.",
)
_QUOTED_FROM_TWO = (
    "{Y} has {a} {y} and {Z} has {b} {z}, so {X} has {e} {x}.",
    "The {y} of {Y} are {a} and the {z} of {Z} are {b}, so the {x} of {X} are {e}.",
    "With {a} {y} of {Y} and {b} {z} of {Z} we get {e} {x} for {X}.",
    "With {a} {y} of {Y} and {b} {z} of {Z}, the {x} of {X} are {e}.",
    "From {a} {y} of {Y} and {b} {z} of {Z} we find {e} {x} for {X}.",
)
_FROM_ONE = (
    *_QUOTED_FROM_ONE,
    "The {y} of {Y} are {a}, so {X} has {e} {x}.",
    "For the {x} of {X} we take the {a} {y} of {Y} and get {e}.",
    "To get the {x} of {X}, we take {a} {y} of {Y}, that makes {e}.",
    "From {a} {y} of {Y} we find {e} {x} for {X}.",
    "Then {a} {y} of {Y} make {e} {x} for {X}.",
)
_FROM_TWO = (
    *_QUOTED_FROM_TWO,
    "With {a} {y} and {b} {z} we get {e} {x} for {X}.",
    "From {Y} and {Z} we find {e} {x} for {X}.",
    "Then {a} {y} and {b} {z} make {e} {x} for {X}.",
    "The {y} of {Y} are {a} and the {z} of {Z} are {b}, so {X} has {e} {x}.",
    "For the {x} of {X} we take the {a} {y} of {Y} and the {b} {z} of {Z} and get {e}.",
    "To get the {x} of {X}, we take {a} {y} of {Y} and {b} {z} of {Z}, that makes {e}.",
)

STEPS: dict[str, tuple[str, ...]] = {
    "more": (
        *_ANY,
        *_TOLD_FROM_ONE,
        *_FROM_ONE,
        "With more than {Y}, {X} has {e} {x}.",
        "With more than the {a} {y} of {Y}, {X} has {e} {x}.",
    ),
    "fewer": (
        *_ANY,
        *_TOLD_FROM_ONE,
        *_FROM_ONE,
        "With fewer than {Y}, {X} has {e} {x}.",
        "With fewer than the {a} {y} of {Y}, {X} has {e} {x}.",
    ),
    "times": (
        *_ANY,
        *_TOLD_FROM_ONE,
        *_FROM_ONE,
        "With many times the {y}, {X} has {e} {x}.",
        "With many times the {a} {y} of {Y}, {X} has {e} {x}.",
    ),
    "half": (
        *_ANY,
        *_TOLD_FROM_ONE,
        *_FROM_ONE,
        "Half of the {y} of {Y} is {e} {x} for {X}.",
        "Half of the {a} {y} of {Y} is {e} {x} for {X}.",
    ),
    "share": (
        *_ANY,
        *_TOLD_FROM_ONE,
        *_FROM_ONE,
        "One share of the {y} of {Y} is {e} {x} for {X}.",
        "One share of the {a} {y} of {Y} is {e} {x} for {X}.",
    ),
    "sum": (
        *_ANY,
        *_TOLD_FROM_TWO,
        *_FROM_TWO,
        "Together {Y} and {Z} make {e} {x} for {X}.",
        "Together the {a} {y} of {Y} and the {b} {z} of {Z} make {e} {x} for {X}.",
    ),
    "difference": (
        *_ANY,
        *_TOLD_FROM_TWO,
        *_FROM_TWO,
        "Without the {z} of {Z} we get {e} {x} for {X}.",
        "Without the {b} {z} of {Z}, the {a} {y} of {Y} make {e} {x} for {X}.",
    ),
    "rate": (
        *_ANY,
        *_TOLD_FROM_ONE,
        *_FROM_ONE,
        "All {y} of {X} hold {e} {x}.",
        "All {a} {y} of {Y} hold {e} {x} for {X}.",
    ),
    "total": (
        "Together that is {e}.",
        "The total is {e}.",
        "So the total is {e}.",
        "In total we get {e}.",
        "Now we add and get {e}.",
        "That makes {e} in total.",
        "We find {e} together.",
        "Together we have {l}, that is {c}.",
    ),
    "gap": (
        "The difference is {e}.",
        "So the difference is {e}.",
        "That makes a difference of {e}.",
        "Now we take one from the other and get {e}.",
        "We find a difference of {e}.",
        "In the end {e} are more.",
        "That is {e} more.",
        "The difference is {l}, that is {c}.",
    ),
}
"""The calculations of a solution, by the kind of the fact that is used, or by what is asked: all that are read."""

TOLD: dict[str, tuple[str, ...]] = {
    kind: _TOLD_FROM_TWO if kind in ("sum", "difference") else _TOLD_FROM_ONE if kind not in ("total", "gap") else forms
    for kind, forms in STEPS.items()
}
"""Those of them that solutions are told in."""

QUOTED: dict[str, tuple[str, ...]] = {
    kind: _QUOTED_FROM_TWO if kind in ("sum", "difference") else _QUOTED_FROM_ONE for kind in SIGNS
}
"""Those that follow a fact which is quoted, so that all of a line but its result is found by what stands before."""

GOALS: tuple[str, ...] = (
    "To find the {x} of {X} we need the {y} of {Y}.",
    "For the {x} of {X} we need the {y} of {Y}.",
    "To get the {x} of {X} we take the {y} of {Y}.",
    "The {x} of {X} go by the {y} of {Y}.",
    "As for the {x} of {X}, we need the {y} of {Y}.",
)
"""Lines that calculate nothing: to find one quantity, another one is needed first."""

ANSWER = "Answer: {c}"
"""The last line of a solution."""
