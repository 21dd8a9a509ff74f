"""Which branches of a forest to open when several of them earn the same reward: branch and bound in whole numbers.

The problem is a prize-collecting group Steiner tree on a tree, NP-hard in general. What makes it fast on search trees:
`settle` decides nearly everything by rules that cost one pass each, and a bound by dual ascent closes the rest after a
few bounds: 0 to 2 at the published weights, 1 to 29 at width 256 and twice the weight. Whole numbers of any size, so
that a proof is a proof: nothing here rounds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Scope = list[tuple[int, int, bool]]
"""The nodes on the paths to those that cover one cluster, children first: node, its parent, does it cover."""

DEEPEST = 150  # branchings on top of each other: three frames each, far from Python's limit of 1,000


class ExhaustedError(Exception):
    """The effort allowed was spent before the optimum was proven. Never shown to users: the caller has another way."""


@dataclass
class Effort:
    """Elementary steps that a search may still take, each about a third of a microsecond; a count, so runs repeat."""

    left: int
    depth: int = 0

    def spend(self, steps: int) -> None:
        """Take `steps` from what is left. Raises ExhaustedError below zero."""
        self.left -= steps
        if self.left < 0 or self.depth > DEEPEST:
            raise ExhaustedError


@dataclass(frozen=True)
class Forest:
    """Nodes that can be opened, parents before children; a node opens only below an open parent, -1 is always open.

    Opening node `i` costs `prices[i]`, below zero if it pays, and covers the clusters in the bit mask `covers[i]`.
    """

    parents: list[int]
    prices: list[int]
    covers: list[int]

    def only(self, kept: list[int]) -> "Forest":
        """Return the forest of the nodes `kept`, which ascend and hold the parents of all they hold."""
        place = {old: new for new, old in enumerate(kept)} | {-1: -1}
        parents = [place[self.parents[i]] for i in kept]
        return Forest(parents, [self.prices[i] for i in kept], [self.covers[i] for i in kept])


def cheapest(forest: Forest, bonus: int, limit: int, effort: Effort) -> int:
    """Return the least sum of opened prices minus `bonus` for every covered cluster; `limit` if it is no less.

    Raises ExhaustedError where `effort` runs out first.
    """
    forest, total = settle(forest, bonus, effort)
    parts = split(forest)
    floors = [-bonus * union(part.covers).bit_count() for part in parts]
    total += sum(floors)
    for part, floor in zip(parts, floors, strict=True):
        if total >= limit:
            return limit
        total += _branch(part, bonus, limit - total + floor, effort) - floor
    return min(total, limit)


def union(covers: Iterable[int]) -> int:
    """Return the mask of all clusters in `covers`."""
    every = 0
    for own in covers:
        every |= own
    return every


def settle(forest: Forest, bonus: int, effort: Effort) -> tuple[Forest, int]:
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


def split(forest: Forest) -> list[Forest]:
    """Return the parts that share neither a root nor a cluster, smallest first; none for an empty forest."""
    tops: list[int] = []
    masks: dict[int, int] = {}
    for i, parent in enumerate(forest.parents):
        tops.append(i if parent < 0 else tops[parent])
        masks[tops[i]] = masks.get(tops[i], 0) | forest.covers[i]
    groups: list[tuple[int, list[int]]] = []
    for top, mask in masks.items():
        together = [top]
        apart = []
        for other, others in groups:
            if other & mask:
                mask |= other
                together += others
            else:
                apart.append((other, others))
        groups = [*apart, (mask, together)]
    if len(groups) < 2:
        return [forest] if groups else []
    which = {top: group for group, (_, together) in enumerate(groups) for top in together}
    members: list[list[int]] = [[] for _ in groups]
    for i, top in enumerate(tops):
        members[which[top]].append(i)
    return [forest.only(part) for part in sorted(members, key=len)]


def _branch(forest: Forest, bonus: int, limit: int, effort: Effort) -> int:
    """Return what `cheapest` does, for one settled part."""
    bound = Bound(forest, bonus, min(limit, 0), effort)
    best = bound.best
    if bound.low >= best:
        return best
    # A node whose path costs more than the gap, after all rewards that can pay for it, is in no better set.
    due = [0] * (len(forest.parents) + 1)
    near = []
    for i, parent in enumerate(forest.parents):
        due[i] = due[parent] + bound.slack[i]
        if bound.low + due[i] < best:
            near.append(i)
    effort.depth += 1
    if len(near) < len(forest.parents):
        best = cheapest(forest.only(near), bonus, best, effort)
    else:
        node = max(near, key=lambda i: (forest.prices[i], -i))
        first = bound.paid_for(node)
        for opened in (first, not first):
            best = _decided(forest, node, opened, bonus, best, effort)
    effort.depth -= 1
    return best


def _decided(forest: Forest, node: int, opened: bool, bonus: int, limit: int, effort: Effort) -> int:
    if not opened:
        shut = bytearray(len(forest.parents) + 1)
        for i, parent in enumerate(forest.parents):
            shut[i] = i == node or shut[parent]
        return cheapest(forest.only([i for i in range(len(forest.parents)) if not shut[i]]), bonus, limit, effort)
    prices = forest.prices[:]
    cost = 0
    while node >= 0:
        cost += prices[node]
        prices[node] = 0
        node = forest.parents[node]
    return cost + cheapest(Forest(forest.parents, prices, forest.covers), bonus, limit - cost, effort)


class Bound:
    """Dual ascent: each cluster spends its reward on the nodes that every way to earn it runs through.

    A node's `slack` is the part of its price that nobody has paid. No set costs less than `low`, what all clusters
    spent minus all rewards; `best` is the least cost known. Spending starts at the bottom, where a node serves one
    cluster alone, and goes up to the nodes that several share. One cluster at a time then gives back what it spent
    and spends it again after its neighbors. At width 256 the first round is up to 4% from the linear relaxation at
    lambda_kv 2 and 20% at 5; giving back leaves half a percent and 8%.
    """

    def __init__(self, forest: Forest, bonus: int, best: int, effort: Effort) -> None:
        self.low = 0
        self.best = best
        self.slack = forest.prices[:]
        self._forest = forest
        self._bonus = bonus
        self._effort = effort
        self._scopes = scopes(forest)
        self._paid: dict[int, dict[int, int]] = {cluster: {} for cluster in self._scopes}
        self._spent = {cluster: self._spend(cluster, bonus, self._paid[cluster]) for cluster in self._scopes}
        self._measure()
        if self.low < self.best and len(self._scopes) > 1:
            self._improve()

    def paid_for(self, node: int) -> bool:
        """Tell whether rewards pay for the whole path to `node`."""
        while node >= 0 and not self.slack[node]:
            node = self._forest.parents[node]
        return node < 0

    def _improve(self) -> None:
        masks = {cluster: sum(1 << i for i, _, _ in scope) for cluster, scope in self._scopes.items()}
        near = {one: [other for other in masks if other != one and masks[other] & masks[one]] for one in masks}
        while True:
            before = self.low
            for cluster in self._scopes:
                hungry = [other for other in near[cluster] if self._spent[other] < self._bonus]
                if hungry and self._spent[cluster]:
                    self._yield(cluster, hungry)
            self._measure()
            # Rounds that close less than an eighth of the gap cost more than a branching.
            if self.low >= self.best or (self.low - before) * 8 < self.best - self.low:
                return

    def _yield(self, cluster: int, hungry: list[int]) -> None:
        """Let `hungry` clusters spend before `cluster` does; undone where all together spend less than before."""
        slack = self.slack[:]
        before = [(each, self._spent[each], self._paid[each]) for each in (cluster, *hungry)]
        for i, part in self._paid[cluster].items():
            self.slack[i] += part
        change = -self._spent[cluster]
        for each in hungry:
            self._paid[each] = dict(self._paid[each])
            more = self._spend(each, self._bonus - self._spent[each], self._paid[each])
            self._spent[each] += more
            change += more
        self._paid[cluster] = {}
        self._spent[cluster] = self._spend(cluster, self._bonus, self._paid[cluster])
        if change + self._spent[cluster] < 0:
            self.slack = slack
            for each, spent, paid in before:
                self._spent[each], self._paid[each] = spent, paid

    def _spend(self, cluster: int, most: int, paid: dict[int, int]) -> int:
        """Spend as much as the least slack of any way to earn the reward, `most` at most; return how much."""
        scope, slack = self._scopes[cluster], self.slack
        self._effort.spend(2 * len(scope))
        least: dict[int, int] = {}
        amount = most
        for i, parent, covers in scope:
            path = slack[i] if covers else slack[i] + least[i]
            if parent < 0:
                amount = min(amount, path)
            elif parent not in least or path < least[parent]:
                least[parent] = path
        if amount <= 0:
            return 0
        due: dict[int, int] = {}
        for i, parent, covers in scope:
            owed = amount if covers else due[i]
            part = min(owed, slack[i])
            if part:
                slack[i] -= part
                paid[i] = paid.get(i, 0) + part
            if parent >= 0 and owed - part >= due.get(parent, 0):
                due[parent] = owed - part
        return amount

    def _measure(self) -> None:
        self.low = sum(self._spent.values()) - self._bonus * len(self._scopes)
        self.best = min(self.best, self._tried())

    def _tried(self) -> int:
        """Return the cost of the set of paid-for nodes, without subtrees that earn less than they cost."""
        forest = self._forest
        opened = bytearray(len(forest.parents) + 1)
        opened[-1] = 1
        count: dict[int, int] = {}
        for i, parent in enumerate(forest.parents):
            if opened[parent] and not self.slack[i]:
                opened[i] = 1
                for cluster in bits(forest.covers[i]):
                    count[cluster] = count.get(cluster, 0) + 1
        gains = [0] * (len(forest.parents) + 1)
        for i in range(len(forest.parents) - 1, -1, -1):
            if not opened[i]:
                continue
            own = list(bits(forest.covers[i]))
            gain = gains[i] - forest.prices[i] + self._bonus * sum(count[cluster] == 1 for cluster in own)
            if gain >= 0:
                gains[forest.parents[i]] += gain
            else:
                opened[i] = 0
                for cluster in own:
                    count[cluster] -= 1
        cost = covered = 0
        for i, parent in enumerate(forest.parents):
            opened[i] &= opened[parent]
            if opened[i]:
                cost += forest.prices[i]
                covered |= forest.covers[i]
        return cost - self._bonus * covered.bit_count()


def scopes(forest: Forest) -> dict[int, Scope]:
    """Return each cluster's scope by its bit, those with the fewest ways to earn their reward first."""
    found: dict[int, dict[int, bool]] = {}
    for i, own in enumerate(forest.covers):
        for cluster in bits(own):
            nodes = found.setdefault(cluster, {})
            nodes[i] = True
            parent = forest.parents[i]
            while parent >= 0 and parent not in nodes:
                nodes[parent] = False
                parent = forest.parents[parent]
    order = sorted(found, key=lambda cluster: (sum(found[cluster].values()), cluster))
    return {
        cluster: [(i, forest.parents[i], found[cluster][i]) for i in sorted(found[cluster], reverse=True)]
        for cluster in order
    }


def bits(mask: int) -> Iterator[int]:
    """Yield the bits of `mask`, each as a mask of its own, the lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low
