"""Labels of steps from a tree of rollouts: a step is as good as the completions that follow it."""

from dataclasses import dataclass
from typing import Literal

from palmette.search.strategies.shepherd import first_solution
from palmette.tree import Node, Tree


@dataclass(frozen=True)
class RolloutLabels:
    """The steps of a solution, without the text that ends a step, and a label from 0 to 1 for each.

    `finished` tells whether the last of them ends the solution.
    """

    steps: tuple[str, ...]
    labels: tuple[float, ...]
    finished: bool


def labels_of(tree: Tree, kind: Literal["hard", "soft"], step_end: str) -> RolloutLabels | None:
    """Return the labels of the first solution of a tree that the strategy `shepherd` has grown and a judge has judged.

    The label of a step is whether any completion from it is correct (`hard`), or the share that is (`soft`). That of
    the step that ends the solution is whether the solution is correct. The labels end before a step without completions
    or without text. None if there is none, or if no leaf has a verdict: without a reference answer nothing is correct.
    """
    if all(tree.nodes[leaf].outcome is None for leaf in tree.leaves()):
        return None
    below: dict[int, list[Node]] = {}
    for node in tree.nodes[1:]:
        assert node.parent is not None
        below.setdefault(node.parent, []).append(node)
    texts: list[str] = []
    labels: list[float] = []
    solution = first_solution(tree)
    for step in solution:
        is_last = step.id not in below
        ends = [step] if is_last else [_end(child, below) for child in below[step.id][1:]]
        text = step.text.removesuffix(step_end)
        if not ends or not text.strip():
            break
        correct = sum(leaf.outcome == "correct" for leaf in ends)
        texts.append(text)
        labels.append(float(correct > 0) if kind == "hard" else correct / len(ends))
    if not labels:
        return None
    return RolloutLabels(tuple(texts), tuple(labels), len(labels) == len(solution) and solution[-1].finished)


def _end(node: Node, below: dict[int, list[Node]]) -> Node:
    """Return the leaf of a branch that does not branch again."""
    while node.id in below:
        node = below[node.id][0]
    return node
