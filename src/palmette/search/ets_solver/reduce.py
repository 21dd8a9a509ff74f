"""Shrinks a forest before branch and bound: rules that open or close most nodes, one pass over the forest each."""

from palmette.search.ets_solver.forest import Effort, Forest


def reduce(forest: Forest, bonus: int, effort: Effort) -> tuple[Forest, int]:
    """Apply the rules until none applies; return the forest of undecided nodes and the cost of what was decided.

    1. A node does not cover what an ancestor covers already. A cluster that only one node can cover becomes a discount
       on that node's price.
    2. A subtree that loses even with the bonus of every cluster in it stays closed.
    3. A subtree that loses nothing even without any bonus opens together with its parent.
    4. An only child takes over the price of a parent that covers nothing (`_merge_only_children`).
    5. A leaf loses clusters that another node covers at no higher price below an ancestor (`_drop_dominated`).

    Rules 2 and 3 may decide all subtrees of a pass at once because costs are supermodular and bonuses submodular.
    """
    parents, prices, covers = forest.parents, forest.prices[:], forest.covers[:]
    total = covered = 0
    while parents:
        effort.spend(3 * len(parents))
        unique = _remove_covered(parents, covers, covered)
        decisions = _decide(parents, prices, covers, unique, bonus)
        if any(decisions):
            place = [-1] * (len(parents) + 1)
            before = zip(parents, prices, covers, decisions, strict=True)
            parents, prices, covers = [], [], []
            for i, (above, price, mask, decision) in enumerate(before):
                parent = place[above]
                if decision == CLOSED or parent == REMOVED:
                    place[i] = REMOVED
                elif decision != OPEN:
                    place[i] = len(parents)
                    parents.append(parent)
                    prices.append(price)
                    covers.append(mask)
                elif parent >= 0:
                    place[i] = parent
                    prices[parent] += price
                    covers[parent] |= mask
                else:
                    total += price - bonus * (mask & ~covered).bit_count()
                    covered |= mask
        merged = _merge_only_children(parents, prices, covers)
        if not _drop_dominated(parents, prices, covers) and not merged and not any(decisions):
            break
    return Forest(parents, prices, covers), total


CLOSED, OPEN = 1, 2
REMOVED = -2  # the new index of a closed node and of every node below it


def _remove_covered(parents: list[int], covers: list[int], covered: int) -> int:
    """Remove from each node the clusters that ancestors or open nodes cover, in place.

    Returns the mask of the clusters that exactly one node still covers.
    """
    above = [covered] * (len(parents) + 1)
    once = twice = 0
    for i, mask in enumerate(covers):
        inherited = above[parents[i]]
        if mask:
            mask &= ~inherited
            covers[i] = mask
            twice |= once & mask
            once |= mask
            inherited |= mask
        above[i] = inherited
    return once & ~twice


def _decide(parents: list[int], prices: list[int], covers: list[int], unique: int, bonus: int) -> bytearray:
    """Return CLOSED, OPEN or 0 (undecided) for each node.

    First moves the bonus of every cluster in `unique` into the price of the one node that covers it, in place.
    """
    upper = [0] * (len(parents) + 1)  # the most a subtree can gain, with every bonus; the last place is for the roots
    lower = [0] * (len(parents) + 1)  # what it gains for certain, without any bonus
    decisions = bytearray(len(parents))
    for i in range(len(parents) - 1, -1, -1):
        mask = covers[i]
        if mask & unique:
            prices[i] -= bonus * (mask & unique).bit_count()
            mask &= ~unique
            covers[i] = mask
        most = upper[i] - prices[i]
        if mask:
            most += bonus * mask.bit_count()
        if most < 0:
            decisions[i] = CLOSED
            continue
        parent = parents[i]
        upper[parent] += most
        certain = lower[i] - prices[i]
        if certain >= 0:
            lower[parent] += certain
            decisions[i] = OPEN
    return decisions


def _merge_only_children(parents: list[int], prices: list[int], covers: list[int]) -> bool:
    """Move the price of a parent that covers nothing to its only child: one decision instead of two.

    Returns whether any price was moved.
    """
    children = [0] * (len(parents) + 1)
    for parent in parents:
        children[parent] += 1
    merged = False
    for i, parent in enumerate(parents):
        if parent >= 0 and children[parent] == 1 and not covers[parent] and prices[parent]:
            prices[i] += prices[parent]
            prices[parent] = 0
            merged = True
    return merged


def _drop_dominated(parents: list[int], prices: list[int], covers: list[int]) -> bool:
    """Clear the clusters of a leaf if another node covers the same ones, costs no more and is below an ancestor.

    "Below an ancestor" means that the other node is a root or a child of one of the leaf's ancestors. Returns whether
    any leaf lost its clusters.
    """
    best: dict[tuple[int, int], int] = {}
    for i, mask in enumerate(covers):
        if mask and ((mask, parents[i]) not in best or prices[i] < prices[best[mask, parents[i]]]):
            best[mask, parents[i]] = i
    inner = set(parents)
    found = False
    for i, mask in enumerate(covers):
        parent = i if mask and i not in inner else -1
        while parent >= 0:
            parent = parents[parent]
            other = best.get((mask, parent), i)
            if other != i and prices[other] <= prices[i]:
                covers[i] = 0
                found = True
                break
    return found
