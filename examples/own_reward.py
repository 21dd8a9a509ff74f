"""Two functions of your own in the place of models: one judges solutions, one scores steps.

The judge is a reward function: it names the arguments it wants and returns a number, of which 1 and more is right. The
scorer looks at one step at a time and returns a number from 0 to 1. Prints the rewards of the leaves and a scored tree.
"""

import re

import palmette


def even_and_short(answer: str | None, solution: str) -> float:
    """Reward even answers, shorter solutions more."""
    if answer is None or not re.fullmatch(r"-?\d+", answer) or int(answer) % 2:
        return 0.0
    return 1.0 + 1.0 / len(solution)


def checks_out(step: str) -> float:
    """Score a step by computing it: `7*2=14` is right."""
    found = re.fullmatch(r"\s*(-?\d+)([-+*])(-?\d+)=(-?\d+)\s*", step)
    if found is None:
        return 0.5
    left, sign, right, result = found.groups()
    made = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
    return 1.0 if made == int(result) else 0.05


with palmette.Searcher("seedling", checks_out, "rebase", judge=even_and_short, width=6, seed=3) as searcher:
    result = searcher.search("(47+85)*6-(31*17)")
for leaf in result.leaves:
    print(f"leaf {leaf.id}: reward {leaf.reward:.3f}, {leaf.outcome}")
print(result.tree)
