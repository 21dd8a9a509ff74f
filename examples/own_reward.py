"""Two functions of your own: one scores steps in the place of a reward model, one judges solutions.

The scorer gets one step at a time and returns a number from 0 to 1. The judge is a reward function as reinforcement
learning libraries have it: it returns a number of which 1 and more is right. Both name the arguments that they want.
Prints the reward of each leaf and the tree with the scores of its steps.
"""

import re

import palmette


def checks_out(step: str) -> float:
    """Score a step like `18+11=29` by computing it."""
    found = re.fullmatch(r"\s*(-?\d+)([-+*])(-?\d+)=(-?\d+)\s*", step)
    if found is None:
        return 0.5
    left, sign, right, result = found.groups()
    made = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
    return 1.0 if made == int(result) else 0.05


def close(answer: str | None, reference: str) -> float:
    """Reward 1 for the right number, less the farther away it is."""
    if answer is None or not re.fullmatch(r"-?\d+", answer):
        return 0.0
    return 1.0 / (1.0 + abs(int(answer) - int(reference)))


with palmette.Searcher("seedling", checks_out, "rebase", judge=close, width=6, seed=1) as searcher:
    result = searcher.search({"question": "6+(18+11)+(19+22)", "answer": 76})
for leaf in result.leaves:
    print(f"leaf {leaf.id}: reward {leaf.reward:.2f}, {leaf.outcome}")
print(result.tree)
