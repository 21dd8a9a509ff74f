"""Compares a formula in a snippet of code with palmette's own, on random numbers."""

import math
import random
from dataclasses import dataclass
from typing import Any

from palmette.agents.formulas import sandbox
from palmette.agents.formulas.concepts import CONCEPTS, Concept, Inputs, Values, find_concept
from palmette.errors import ConfigError
from palmette.units import one_line

_TRIALS = 4
_SECONDS = 5.0


@dataclass(frozen=True)
class Comparison:
    """Whether a snippet computes what a concept means; `said` has the first difference, with a hint where one is seen.

    `agrees` is None where the snippet could not be run.
    """

    concept: str
    formula: str
    agrees: bool | None
    said: str
    theirs: str = ""
    ours: str = ""


def verify(code: str, concept_name: str) -> Comparison:
    """Run a snippet behind walls on random inputs, and compare. Raises ConfigError for a concept that is not known."""
    name = find_concept(concept_name)
    if name is None:
        raise ConfigError(f"no formula is known as {one_line(concept_name, 80)!r}. There are {', '.join(CONCEPTS)}")
    concept = CONCEPTS[name]
    trials = [_inputs(concept, code, seed) for seed in range(_TRIALS)]
    request = {"code": code, "trials": trials, "aliases": {key: list(known) for key, known in concept.aliases.items()}}
    answer = {} if _is_of_torch(code) else sandbox.plain.run(request, _SECONDS)
    if "values" not in answer and not _is_final(answer):
        answer = sandbox.torch.run(request, _SECONDS)
    if "values" not in answer:
        told = one_line(str(answer.get("error", "")), 400)
        return Comparison(name, concept.formula, None, f"it cannot be run: {told}. Inputs are {_names(concept)}")
    for place, (inputs, theirs) in enumerate(zip(trials, answer["values"], strict=False)):
        difference = _difference(concept, theirs, concept.values(inputs))
        if difference is not None:
            where, seen, expected, hint = difference
            said = f"trial {place + 1}, {where}: {seen} where {expected} is right{hint}"
            return Comparison(name, concept.formula, False, said, seen, expected)
    return Comparison(name, concept.formula, True, f"the same in {len(trials)} trials")


_OF_TORCH = (
    "torch",
    "F.",
    ".view(",
    ".gather(",
    ".logsumexp",
    "log_softmax",
    "dim=",
    ".unsqueeze",
    ".repeat_interleave",
)
_FINAL = ("SyntaxError", "PermissionError", "MemoryError", "it did not end", "it ended", "BlockingIOError")


def _is_of_torch(code: str) -> bool:
    return any(sign in code for sign in _OF_TORCH)


def _is_final(answer: dict[str, Any]) -> bool:
    """Tell whether tensors in the place of lists would change nothing about an error."""
    return str(answer.get("error", "")).startswith(_FINAL)


def _inputs(concept: Concept, code: str, seed: int) -> Inputs:
    """Return random inputs; one group of rewards where the code does not ask how large groups are."""
    inputs = concept.inputs(random.Random(seed))
    if "group" in inputs and not any(name in code for name in concept.aliases["group"] if len(name) > 1):
        inputs = {**inputs, "rewards": inputs["rewards"][: inputs["group"]]}
    return inputs


def _names(concept: Concept) -> str:
    return "; ".join(f"{name} ({', '.join(known[:4])})" for name, known in concept.aliases.items())


def _difference(concept: Concept, theirs: Any, ours: Values) -> tuple[str, str, str, str] | None:
    """Return where two results differ first, both values and a hint; None where they are the same."""
    if not isinstance(theirs, list):
        return "result", one_line(repr(theirs), 80), f"{len(ours)} values", ""
    if len(theirs) == 1 and len(ours) > 1 and all(isinstance(value, float) for value in ours):
        ours = [math.fsum(float(value) for value in ours) / len(ours)]
    if len(theirs) != len(ours):
        return "result", f"{len(theirs)} values", f"{len(ours)} values", ""
    scale = max((abs(value) for value in ours if isinstance(value, float)), default=1.0) or 1.0
    pairs: list[tuple[Any, float | str]] = list(zip(theirs, ours, strict=True))
    for place, (seen, expected) in enumerate(pairs):
        if isinstance(expected, str):
            if _answer(str(seen)) != _answer(expected):
                hint = "" if str(seen).strip() else ": the text is empty, and a reward of it is 0 for all"
                return f"value {place}", one_line(repr(seen), 80), one_line(repr(expected), 80), hint
        elif not isinstance(seen, int | float) or not abs(seen - expected) <= concept.tolerance * scale:
            shown = f"{seen:.6g}" if isinstance(seen, int | float) else one_line(repr(seen), 80)
            return f"value {place}", shown, f"{expected:.6g}", _hint(theirs, ours)
    return None


def _answer(text: str) -> str:
    """Return a text without its reasoning: libraries keep that or take it away."""
    return text.rpartition("</think>")[2].strip()


def _hint(theirs: list[Any], ours: Values) -> str:
    """Return what the difference looks like: another sign, or a factor that all values share."""
    pairs = [
        (a, b) for a, b in zip(theirs, ours, strict=True) if isinstance(a, int | float) and isinstance(b, float) and b
    ]
    if not pairs or not all(math.isfinite(a) for a, _ in pairs):
        return ": values are not finite" if pairs else ""
    if max(abs(a) for a, _ in pairs) < 0.01 * max(abs(b) for _, b in pairs):
        return ": all values are near 0, so something divides by far too much, such as an epsilon"
    factors = sorted(a / b for a, b in pairs)
    middle = factors[len(factors) // 2]
    if any(abs(factor - middle) > 0.05 * abs(middle) for factor in factors):
        return ""
    return ": the sign is reversed" if abs(middle + 1) < 0.05 else f": theirs is {middle:.3g} times that everywhere"
