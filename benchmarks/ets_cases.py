"""Compares ETS with what the published code chose, on the trees of a JSON file: `ets_cases.py CASES.json`."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from palmette.search.strategies import ets
from palmette.search.strategies.rebase import share
from palmette.strategy import Frontier
from palmette.tree import Node, Tree


def frontier_of(case: dict[str, Any]) -> Frontier:
    """Return the case's frontier, with as many tokens in a node as the case says. No two nodes are equal."""
    nodes: list[Node] = []
    for each in case["nodes"]:
        depth = 0 if each["parent"] is None else nodes[each["parent"]].depth + 1
        tokens = (each["id"],) * each["tokens"]
        nodes.append(Node(each["id"], each["parent"], depth, tokens, str(each["id"]), (), finished=False))
    scores = tuple(case["nodes"][leaf]["score"] for leaf in case["leaves"])
    labels = {leaf: case["cluster"][str(leaf)] for leaf in case["leaves"]} if len(case["leaves"]) > 1 else {}
    return Frontier(Tree(nodes[0].tokens, nodes), tuple(case["leaves"]), scores, labels)


def worth_of(case: dict[str, Any], frontier: Frontier, kept: set[int], children: dict[int, int]) -> float:
    """Return the published objective of a set, computed from its definition."""
    tree, labels = frontier.tree, case["cluster"]
    every = {step.id for leaf in frontier.leaves for step in tree.path(leaf)}
    held = {step.id for leaf in kept for step in tree.path(leaf)}
    worth = sum(children.get(leaf, 0) for leaf in kept) / sum(children.values())
    worth -= case["lambdac"] * len(held) / len(every)
    if case["lambdas"] > 0 and len(frontier.leaves) > 1:
        worth += case["lambdas"] * len({labels[str(leaf)] for leaf in kept}) / len(set(labels.values()))
    return float(worth)


def published_share(ranked: list[tuple[int, float]], width: int, temperature: float) -> dict[int, int]:
    """Return REBASE's children in float32, as the published code rounds: now and then one more than the width."""
    import torch

    weights = torch.exp(torch.tensor([score / temperature for _, score in ranked]))
    left = weights.sum()
    children = {}
    for (leaf, _), weight in zip(ranked, weights, strict=True):
        count = math.ceil(width * weight / left) if left > 0 else 0
        if count > 0:
            children[leaf] = count
        width -= count
        left -= weight
    return children


def compared(case: dict[str, Any]) -> tuple[bool, bool, str]:
    """Return whether the objective agrees, whether the children do, and why not."""
    frontier = frontier_of(case)
    temperature, width = case["softmax_temperature"], case["width"]
    shares = share(frontier.ranked(), width, temperature)
    found = ets.worthwhile(frontier, shares, case["lambdac"], case["lambdas"], "nodes")
    settings = ets.EtsSettings(
        rebase_temperature=temperature, lambda_kv=case["lambdac"], lambda_diversity=case["lambdas"], kv_cost="nodes"
    )
    ours = ets.Ets(settings, width=width).allocate(frontier, width, None)
    theirs = {int(leaf): count for leaf, count in case["children"].items() if count}
    agrees = abs(found.worth - case["objective"]) < 1e-6
    if set(found.leaves) != set(case["kept"]):
        worth = worth_of(case, frontier, set(case["kept"]), shares)
        tie = "a tie" if abs(worth - found.worth) < 1e-9 else "no tie"
        why = f"{tie}: our set is worth {found.worth:.9f}, theirs {worth:.9f}"
    else:
        kept = [pair for pair in frontier.ranked() if pair[0] in found.leaves]
        rounding = "rounds as float32 does" if published_share(kept, width, temperature) == theirs else "differs"
        more = {leaf: theirs.get(leaf, 0) - ours.get(leaf, 0) for leaf in theirs.keys() | ours.keys()}
        changed = {leaf: change for leaf, change in sorted(more.items()) if change}
        why = f"the same set; {sum(theirs.values())} children, ours {sum(ours.values())}: {changed}, which {rounding}"
    return agrees, ours == theirs, why


def main(path: str) -> int:
    """Print a line for each case whose children differ and one for all; return 1 where an objective differs."""
    cases = json.loads(Path(path).read_text(encoding="utf-8"))
    results = [compared(case) for case in cases]
    for number, (agrees, same, why) in enumerate(results):
        if not agrees or not same:
            print(f"case {number:2d}, width {cases[number]['width']:3d}: {why}")
    objectives, allocations = sum(agrees for agrees, _, _ in results), sum(same for _, same, _ in results)
    print(f"{len(cases)} cases: objective matched in {objectives}, children in {allocations}")
    return int(objectives < len(cases))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
