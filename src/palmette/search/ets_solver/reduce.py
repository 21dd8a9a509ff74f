"""Rules that decide most of a forest at one pass each, before anything is searched."""

from palmette.search.ets_solver.forest import Effort, Forest


def reduce(forest: Forest, bonus: int, effort: Effort) -> tuple[Forest, int]:
    """Return the forest that is left to decide when every rule has been applied, and the cost of what is decided.

    - What an ancestor covers is no reward for a node; what only one node can cover is that node's own.
    - A subtree that does not pay even if it earned every reward in it stays shut.
    - A subtree that pays though it earns no reward opens with its parent.
    Both hold for subtrees at once because costs are supermodular and rewards submodular.
    """
    parents, prices, covers = forest.parents, forest.prices[:], forest.covers[:]
    total = covered = 0
    while parents:
        effort.spend(3 * len(parents))
        alone = _uncover(parents, covers, covered)
        moves = _moves(parents, prices, covers, alone, bonus)
        if any(moves):
            place = [-1] * (len(parents) + 1)
            before = zip(parents, prices, covers, moves, strict=True)
            parents, prices, covers = [], [], []
            for i, (above, price, own, move) in enumerate(before):
                parent = place[above]
                if move == SHUT or parent == GONE:
                    place[i] = GONE
                elif move != OPEN:
                    place[i] = len(parents)
                    parents.append(parent)
                    prices.append(price)
                    covers.append(own)
                elif parent >= 0:
                    place[i] = parent
                    prices[parent] += price
                    covers[parent] |= own
                else:
                    total += price - bonus * (own & ~covered).bit_count()
                    covered |= own
        moved = _pay_below(parents, prices, covers)
        if not _outdone(parents, prices, covers) and not moved and not any(moves):
            break
    return Forest(parents, prices, covers), total


SHUT, OPEN = 1, 2
GONE = -2  # no place: below a node that stays shut


def _uncover(parents: list[int], covers: list[int], covered: int) -> int:
    """Strike clusters that ancestors cover, in place; return the clusters that one node alone is left to cover."""
    above = [covered] * (len(parents) + 1)
    once = twice = 0
    for i, own in enumerate(covers):
        inherited = above[parents[i]]
        if own:
            own &= ~inherited
            covers[i] = own
            twice |= once & own
            once |= own
            inherited |= own
        above[i] = inherited
    return once & ~twice


def _moves(parents: list[int], prices: list[int], covers: list[int], alone: int, bonus: int) -> bytearray:
    """Return SHUT, OPEN or 0 (undecided) for each node; clusters in `alone` become part of their node's price."""
    hopes = [0] * (len(parents) + 1)  # what a subtree can earn at best; the last place gathers the roots
    gains = [0] * (len(parents) + 1)  # what it earns for sure
    moves = bytearray(len(parents))
    for i in range(len(parents) - 1, -1, -1):
        own = covers[i]
        if own & alone:
            prices[i] -= bonus * (own & alone).bit_count()
            own &= ~alone
            covers[i] = own
        hope = hopes[i] - prices[i]
        if own:
            hope += bonus * own.bit_count()
        if hope < 0:
            moves[i] = SHUT
            continue
        parent = parents[i]
        hopes[parent] += hope
        gain = gains[i] - prices[i]
        if gain >= 0:
            gains[parent] += gain
            moves[i] = OPEN
    return moves


def _pay_below(parents: list[int], prices: list[int], covers: list[int]) -> bool:
    """Let an only child pay for a parent that covers nothing: one decision instead of two. True if any did."""
    children = [0] * (len(parents) + 1)
    for parent in parents:
        children[parent] += 1
    moved = False
    for i, parent in enumerate(parents):
        if parent >= 0 and children[parent] == 1 and not covers[parent] and prices[parent]:
            prices[i] += prices[parent]
            prices[parent] = 0
            moved = True
    return moved


def _outdone(parents: list[int], prices: list[int], covers: list[int]) -> bool:
    """Strike the reward of a childless node where another earns it, no dearer, below one of its ancestors."""
    best: dict[tuple[int, int], int] = {}
    for i, own in enumerate(covers):
        if own and ((own, parents[i]) not in best or prices[i] < prices[best[own, parents[i]]]):
            best[own, parents[i]] = i
    inner = set(parents)
    found = False
    for i, own in enumerate(covers):
        parent = i if own and i not in inner else -1
        while parent >= 0:
            parent = parents[parent]
            other = best.get((own, parent), i)
            if other != i and prices[other] <= prices[i]:
                covers[i] = 0
                found = True
                break
    return found
