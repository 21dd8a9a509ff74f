"""The covering problem as a mixed-integer program for HiGHS: slower on small forests, steadier on large ones."""

from palmette.search.ets_solver.forest import Effort, Forest, scopes, split
from palmette.search.ets_solver.reduce import reduce


def cheapest(forest: Forest, bonus: int) -> int:
    """Return what `covering.cheapest` does, as far as floats of 53 bits can tell sets apart; no limit, no effort."""
    rest, total = reduce(forest, bonus, Effort(1 << 60))
    return total + sum(_solved(part, bonus) for part in split(rest))


def _solved(forest: Forest, bonus: int) -> int:
    """Choose nodes `open`, and for each cluster a flow of at most 1 from its roots down to nodes that cover it.

    Flow needs open nodes, cluster by cluster. The published model asks only that some covering leaf is open, for
    which half a node in two places is enough: its relaxation is several times farther from the optimum.
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
        raise RuntimeError(f"HiGHS found no set: {found.message}")
    cost = covered = 0
    for node in range(count):
        if found.x[node] > 0.5:
            cost += forest.prices[node]
            covered |= forest.covers[node]
    return cost - bonus * covered.bit_count()
