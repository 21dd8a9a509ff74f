"""Solves the covering problem with HiGHS, a mixed-integer solver: slower on small forests, steadier on large ones."""

from palmette.search.ets_solver.forest import Effort, Forest, scopes, split
from palmette.search.ets_solver.reduce import reduce


def cheapest(forest: Forest, bonus: int) -> int:
    """Return the same as `covering.cheapest`, up to the precision of 64-bit floats; takes no limit and no effort."""
    rest, total = reduce(forest, bonus, Effort(1 << 60))
    return total + sum(_solve_part(part, bonus) for part in split(rest))


def _solve_part(forest: Forest, bonus: int) -> int:
    """Return the least cost of one part. Variables: whether each node is open, and for each cluster a flow.

    The flow of a cluster goes from the roots down to nodes that cover it, is at most 1 in all, and at each node at most
    as much as the node is open. The published model only requires that some covering leaf is open, which its linear
    relaxation satisfies with two half-open leaves: that relaxation is several times farther from the optimum.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    count = len(forest.parents)
    objective = [1000 * price / bonus for price in forest.prices]
    rows: list[list[tuple[int, int]]] = []
    tops: list[int] = []
    for scope in scopes(forest).values():
        flow = {node: len(objective) + place for place, (node, _, _) in enumerate(scope)}
        below: dict[int, list[int]] = {}
        for node, parent, _ in scope:
            objective.append(-1000.0 if parent < 0 else 0.0)
            below.setdefault(parent, []).append(flow[node])
            rows.append([(flow[node], 1), (node, -1)])
        rows += [[(flow[node], 1), *((child, -1) for child in below[node])] for node, _, covers in scope if not covers]
        tops.append(len(rows))
        rows.append([(child, 1) for child in below[-1]])
    rows += [[(node, 1), (parent, -1)] for node, parent in enumerate(forest.parents) if parent >= 0]

    most = np.zeros(len(rows))
    most[tops] = 1
    entries = [(row, column, sign) for row, terms in enumerate(rows) for column, sign in terms]
    row_of, column_of, signs = zip(*entries, strict=True)
    matrix = csr_array((signs, (row_of, column_of)), shape=(len(rows), len(objective)))
    whole = np.zeros(len(objective))
    whole[:count] = 1
    found = milp(
        objective,
        integrality=whole,
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, -np.inf, most),
        options={"mip_rel_gap": 0},
    )
    if found.x is None:
        raise RuntimeError(f"HiGHS found no solution: {found.message}")
    cost = covered = 0
    for node in range(count):
        if found.x[node] > 0.5:
            cost += forest.prices[node]
            covered |= forest.covers[node]
    return cost - bonus * covered.bit_count()
