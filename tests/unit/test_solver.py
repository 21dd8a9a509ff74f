import math
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction

import pytest

from palmette.search.ets_solver import knapsack as fit
from palmette.search.ets_solver import milp, solver
from palmette.search.ets_solver.covering import cheapest
from palmette.search.ets_solver.forest import Effort, ExhaustedError, Forest
from palmette.search.ets_solver.knapsack import select_within
from palmette.search.ets_solver.solver import Candidates, Number, Selection, select


def walked(candidates: Candidates) -> list[int]:
    """Return the leaves in the order of the promise: down before on, older children first."""

    def path(node: int) -> list[int]:
        above = candidates.parents[node]
        return [*([] if above is None else path(above)), node]

    return sorted(candidates.values, key=path)


def sets(candidates: Candidates) -> Iterator[tuple[int, Number, Number, int]]:
    """Yield every set of leaves but the empty one: bits, the first leaf's the highest; values; costs; clusters."""
    leaves = walked(candidates)
    nodes = list(candidates.parents)
    paths = []
    for leaf in leaves:
        node: int | None = leaf
        path = 0
        while node is not None:
            path |= 1 << nodes.index(node)
            node = candidates.parents[node]
        paths.append(path)
    rows: list[tuple[Number, int, int]] = [(0, 0, 0)]
    costs: dict[int, Number] = {}
    for bits in range(1, 1 << len(leaves)):
        rank = len(leaves) - (bits & -bits).bit_length()
        value, held, clusters = rows[bits & (bits - 1)]
        label = candidates.clusters.get(leaves[rank])
        row = (
            value + candidates.values[leaves[rank]],
            held | paths[rank],
            clusters if label is None else clusters | 1 << label,
        )
        rows.append(row)
        if row[1] not in costs:
            costs[row[1]] = sum(candidates.costs[node] for place, node in enumerate(nodes) if row[1] >> place & 1)
        yield bits, row[0], costs[row[1]], row[2].bit_count()


def named(candidates: Candidates, bits: int) -> tuple[int, ...]:
    leaves = walked(candidates)
    return tuple(sorted(leaf for rank, leaf in enumerate(leaves) if bits >> (len(leaves) - 1 - rank) & 1))


def by_trying_all(candidates: Candidates) -> Selection:
    scale, whole = multiplied(candidates)
    worth, bits = max((v - c + whole.bonus * k, bits) for bits, v, c, k in sets(whole))
    return Selection(named(candidates, bits), float(Fraction(worth) / scale))


def by_trying_all_within(candidates: Candidates, room: Number) -> float | None:
    scale, whole = multiplied(candidates)
    worths = [v + whole.bonus * k for _, v, c, k in sets(whole) if c <= room * scale]
    return float(Fraction(max(worths)) / scale) if worths else None


def multiplied(candidates: Candidates) -> tuple[int, Candidates]:
    """Return the same in whole numbers: sums of floats would hide ties."""
    numbers = [*candidates.values.values(), *candidates.costs.values(), candidates.bonus]
    scale = math.lcm(*(Fraction(number).denominator for number in numbers))

    def times(table: Mapping[int, Number]) -> dict[int, int]:
        return {key: int(Fraction(number) * scale) for key, number in table.items()}

    bonus = int(Fraction(candidates.bonus) * scale)
    return scale, Candidates(
        candidates.parents, times(candidates.values), times(candidates.costs), candidates.clusters, bonus
    )


def random_tree(rng: random.Random, most: int) -> tuple[dict[int, int | None], list[int]]:
    """Return parents and leaves of a tree with up to `most` leaves, bushy or stringy."""
    wanted, stretch = rng.randint(1, most), rng.choice((0.0, 0.3, 0.7))
    parents: dict[int, int | None] = {0: None}
    open_nodes = [0]
    while len(open_nodes) < wanted or rng.random() < stretch:
        node = rng.choice(open_nodes)
        children = 1 if rng.random() < stretch else min(rng.randint(2, 4), 1 + wanted - len(open_nodes))
        open_nodes.remove(node)
        for _ in range(children):
            parents[len(parents)] = node
            open_nodes.append(len(parents) - 1)
    return parents, open_nodes


def whole_numbers(seed: int, most: int = 7) -> Candidates:
    """Small whole numbers: nearly every tree has ties."""
    rng = random.Random(seed)
    parents, leaves = random_tree(rng, most)
    dear = rng.choice((1, 2, 4))
    return Candidates(
        parents,
        {leaf: rng.randint(0, 4) for leaf in leaves},
        {node: rng.randint(0, dear) for node in parents},
        {leaf: rng.randrange(1 + len(leaves) // 2) for leaf in leaves if rng.random() < 0.9},
        rng.choice((0, 1, 2, 3, 5)),
    )


def fractions_of_rebase(seed: int, most: int = 7) -> Candidates:
    """Numbers as ETS has them: shares of a width, equal costs, a bonus divided by the clusters."""
    rng = random.Random(seed)
    parents, leaves = random_tree(rng, most)
    labels = {leaf: rng.randrange(1 + len(leaves) // 2) for leaf in leaves}
    return Candidates(
        parents,
        {leaf: Fraction(rng.choice((0, 0, 1, 1, 2, 3, 7)), 16) for leaf in leaves},
        dict.fromkeys(parents, Fraction(rng.choice((1, 2, 4)), len(parents))),
        labels,
        Fraction(rng.choice((0, 5, 14, 15)), 10) / len(set(labels.values())),
    )


def floats(seed: int, most: int = 7) -> Candidates:
    rng = random.Random(seed)
    parents, leaves = random_tree(rng, most)
    dear = rng.choice((0.1, 0.4, 1.0))
    return Candidates(
        parents,
        {leaf: rng.random() for leaf in leaves},
        {node: dear * rng.random() for node in parents},
        {leaf: rng.randrange(1 + len(leaves) // 2) for leaf in leaves},
        rng.random(),
    )


KINDS = [whole_numbers, fractions_of_rebase, floats]


@pytest.mark.parametrize("kind", KINDS)
def test_the_set_is_the_one_that_trying_all_finds_ties_included(kind) -> None:  # type: ignore[no-untyped-def]
    for seed in range(1200):
        candidates = kind(seed)
        found, best = select(candidates), by_trying_all(candidates)
        assert found.leaves == best.leaves, seed
        assert found.worth == pytest.approx(best.worth, abs=1e-12) and found.gap == 0


@pytest.mark.parametrize("kind", KINDS)
def test_twelve_leaves_too(kind) -> None:  # type: ignore[no-untyped-def]
    for seed in range(5000, 5080):
        candidates = kind(seed, most=12)
        assert select(candidates).leaves == by_trying_all(candidates).leaves, seed


@pytest.mark.parametrize("kind", KINDS)
def test_without_clusters_too(kind) -> None:  # type: ignore[no-untyped-def]
    for seed in range(9000, 9400):
        given = kind(seed, most=8)
        candidates = Candidates(given.parents, given.values, given.costs)
        assert select(candidates).leaves == by_trying_all(candidates).leaves, seed


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_shared_across_subtrees_need_branching_and_get_it(kind) -> None:  # type: ignore[no-untyped-def]
    # Few clusters over many leaves in dear subtrees: the rules alone decide little here.
    for seed in range(200):
        rng = random.Random(seed)
        given = kind(seed, most=10)
        labels = {leaf: rng.randrange(3) for leaf in given.values}
        bonus = 2 * max(given.costs.values())
        candidates = Candidates(given.parents, dict.fromkeys(given.values, 0), given.costs, labels, bonus)
        assert select(candidates).leaves == by_trying_all(candidates).leaves, seed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clustered", [True, False])
def test_under_a_limit_no_set_that_fits_is_worth_more(kind, clustered: bool) -> None:  # type: ignore[no-untyped-def]
    for seed in range(350):
        given = kind(seed)
        clusters = given.clusters if clustered else {}
        candidates = Candidates(given.parents, given.values, given.costs, clusters, given.bonus)
        room = Fraction(random.Random(seed).choice((0.1, 0.3, 0.5, 0.8, 1.1))) * Fraction(sum(given.costs.values()))
        found, best = select_within(candidates, room), by_trying_all_within(candidates, room)
        if found is None or best is None:
            assert found is None and best is None, seed
            continue
        assert found.worth == pytest.approx(best, abs=1e-12), seed
        assert found.gap == 0
        worth, cost = measured(candidates, found.leaves)
        assert cost <= room and worth == pytest.approx(found.worth, abs=1e-12)


def test_under_a_limit_twelve_leaves_too() -> None:
    for seed in range(60):
        candidates = whole_numbers(seed, most=12)
        room = sum(candidates.costs.values()) // 2
        found, best = select_within(candidates, room), by_trying_all_within(candidates, room)
        assert (None if found is None else found.worth) == best, seed


def measured(candidates: Candidates, leaves: tuple[int, ...]) -> tuple[float, Number]:
    wanted = tuple(sorted(leaves))
    for bits, value, cost, clusters in sets(candidates):
        if named(candidates, bits) == wanted:
            return float(value + candidates.bonus * clusters), cost
    raise AssertionError


def fork() -> dict[int, int | None]:
    """The root 0 above 1 and 2; leaves 3 and 4 below 1, leaf 5 below 2."""
    return {0: None, 1: 0, 2: 0, 3: 1, 4: 1, 5: 2}


def test_a_hand_worked_tree_without_clusters() -> None:
    # Leaf 3 brings 5 - 1, leaf 4 brings 1 - 1 and stays because it changes nothing, node 1 costs 1: 3 together.
    # Leaf 5 brings 2 - 1 below node 2, which costs 3: not worth it. The root costs 1 in any case: 3 - 1 = 2.
    costs = {0: 1, 1: 1, 2: 3, 3: 1, 4: 1, 5: 1}
    assert select(Candidates(fork(), {3: 5, 4: 1, 5: 2}, costs)) == Selection((3, 4), 2.0)


def test_a_cluster_opens_a_branch_that_does_not_pay_by_itself() -> None:
    # As above, but leaf 5 is alone in cluster 1, which is worth 2: -2 + 2 = 0 keeps it.
    costs = {0: 1, 1: 1, 2: 3, 3: 1, 4: 1, 5: 1}
    clusters = {3: 0, 4: 0, 5: 1}
    assert select(Candidates(fork(), {3: 5, 4: 1, 5: 2}, costs, clusters, 2)) == Selection((3, 4, 5), 4.0)
    assert select(Candidates(fork(), {3: 5, 4: 0, 5: 2}, costs, clusters, 1.5)) == Selection((3,), 3.5)


def test_at_least_one_leaf_is_kept_the_least_bad_one() -> None:
    # Root 1 in any case; below it leaf 3 costs 9 + 9, leaf 4 costs 9 + 8, leaf 5 costs 9 + 8: 4 is older than 5.
    costs = dict.fromkeys(fork(), 9)
    assert select(Candidates(fork(), {3: 0, 4: 1, 5: 1}, costs)).leaves == (4,)
    # Below 1 both leaves pay once node 1 is paid for: they come together.
    assert select(Candidates(fork(), {3: 10, 4: 11, 5: 8}, {**costs, 1: 30, 2: 40})).leaves == (3, 4)


def test_of_twins_the_older_is_kept() -> None:
    costs = dict.fromkeys(fork(), 1)
    assert select(Candidates(fork(), dict.fromkeys((3, 4, 5), 0), costs, dict.fromkeys((3, 4, 5), 0), 9)).leaves == (3,)


def test_where_nothing_costs_anything_all_is_kept() -> None:
    candidates = Candidates(fork(), {3: 0, 4: 0.5, 5: 0}, dict.fromkeys(fork(), 0))
    assert select(candidates) == Selection((3, 4, 5), 0.5)
    assert select_within(candidates, 0) == Selection((3, 4, 5), 0.5)


def test_one_leaf_is_kept_whatever_it_costs() -> None:
    assert select(Candidates({0: None}, {0: 1}, {0: 5})) == Selection((0,), -4.0)
    assert select(Candidates({0: None, 1: 0, 2: 1}, {2: 0.25}, {0: 1, 1: 1, 2: 1}, {2: 7}, 0.5)).worth == -2.25


def test_the_order_in_which_a_tree_is_told_does_not_matter() -> None:
    for seed in range(150):
        given = whole_numbers(seed, most=10)
        rng = random.Random(seed)

        def shuffled(table, rng: random.Random = rng):  # type: ignore[no-untyped-def]
            return dict(rng.sample(list(table.items()), len(table)))

        renamed = {label: place for place, label in enumerate(rng.sample(range(20), 20))}
        told = Candidates(
            shuffled(given.parents),
            shuffled(given.values),
            shuffled(given.costs),
            {leaf: renamed[label] for leaf, label in shuffled(given.clusters).items()},
            given.bonus,
        )
        assert select(told) == select(given) == select(given)
        room = sum(given.costs.values()) // 2
        assert select_within(told, room) == select_within(given, room)


def test_a_scale_changes_nothing_but_the_worth() -> None:
    for seed in range(100):
        given = whole_numbers(seed)
        tiny = Candidates(
            given.parents,
            {leaf: value * 2.0**-40 for leaf, value in given.values.items()},
            {node: cost * 2.0**-40 for node, cost in given.costs.items()},
            given.clusters,
            given.bonus * 2.0**-40,
        )
        assert select(tiny).leaves == select(given).leaves


def test_highs_finds_the_same_worth_where_effort_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "STEPS", 0)
    for seed in range(60):
        candidates = fractions_of_rebase(seed, most=9)
        found, best = select(candidates), by_trying_all(candidates)
        assert found.worth == pytest.approx(best.worth, abs=1e-9), seed
        worth, cost = measured(candidates, found.leaves)
        assert worth - float(cost) == pytest.approx(found.worth, abs=1e-9)


def test_a_limit_without_effort_gives_a_set_that_fits_and_an_honest_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "STEPS", 0)
    gaps = 0
    for seed in range(100):
        candidates = whole_numbers(seed, most=9)
        room = sum(candidates.costs.values()) // 2
        found, best = select_within(candidates, room), by_trying_all_within(candidates, room)
        if found is None or best is None:
            assert found is None and best is None
            continue
        assert measured(candidates, found.leaves)[1] <= room
        assert found.worth <= best <= found.worth + found.gap
        gaps += found.gap > 0
    assert gaps > 20


def test_a_room_too_small_for_any_path_is_none() -> None:
    candidates = Candidates(fork(), {3: 5, 4: 1, 5: 2}, {0: 10, 1: 2, 2: 1, 3: 4, 4: 3, 5: 5})
    assert select_within(candidates, 14) is None
    assert select_within(candidates, 15) == Selection((4,), 1.0)
    assert select_within(candidates, 16) == Selection((3,), 5.0)


def test_effort_is_counted_and_runs_out() -> None:
    forest = Forest([-1, -1], [3, 4], [1, 1])
    effort = Effort(1000)
    assert cheapest(forest, 10, 0, effort) == -7
    assert effort.left < 1000
    with pytest.raises(ExhaustedError):
        cheapest(forest, 10, 0, Effort(0))


def test_a_limit_that_cannot_be_beaten_comes_back() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        parents = [rng.randint(-1, i - 1) for i in range(9)]
        # Any tree order will do as long as parents come first.
        forest = Forest(parents, [rng.randint(-2, 6) for _ in parents], [rng.choice((0, 1, 2, 4, 8)) for _ in parents])
        best = cheapest(forest, 5, 1, Effort(10**9))
        assert best == min(_cost(forest, opened, 5) for opened in range(1 << 9) if _closed(forest, opened))
        for limit in (best - 1, best, best + 1):
            assert cheapest(forest, 5, limit, Effort(10**9)) == min(best, limit)


def test_forests_too_large_to_try_all_cost_what_highs_says() -> None:
    for seed in range(120):
        rng = random.Random(seed)
        parents = [rng.randint(max(-1, i - 12), i - 1) for i in range(rng.randint(20, 70))]
        inner, clusters = set(parents), rng.randint(2, 12)
        covers = [0 if i in inner and rng.random() < 0.9 else 1 << rng.randrange(clusters) for i in range(len(parents))]
        forest, bonus = Forest(parents, [rng.randint(-1, 9) for _ in parents], covers), rng.randint(3, 25)
        assert cheapest(forest, bonus, 1, Effort(10**9)) == milp.cheapest(forest, bonus), seed


def _closed(forest: Forest, opened: int) -> bool:
    return all(p < 0 or opened >> p & 1 for i, p in enumerate(forest.parents) if opened >> i & 1)


def _cost(forest: Forest, opened: int, bonus: int) -> int:
    inside = [i for i in range(len(forest.parents)) if opened >> i & 1]
    covered = 0
    for i in inside:
        covered |= forest.covers[i]
    return sum(forest.prices[i] for i in inside) - bonus * covered.bit_count()


@pytest.mark.parametrize(
    ("parents", "values", "costs", "why"),
    [
        ({0: None, 1: 0}, {}, {0: 1, 1: 1}, "needs a leaf"),
        ({0: None, 1: None}, {0: 1, 1: 1}, {0: 1, 1: 1}, "2 roots"),
        ({0: None, 1: 0}, {0: 1, 1: 1}, {0: 1, 1: 1}, "2 candidates, but 1 leaves"),
        ({0: None, 1: 0, 2: 0, 3: 1, 4: 1}, {1: 1, 2: 1, 3: 1, 4: 1}, dict.fromkeys(range(5), 1), "has children"),
        ({0: None, 1: 0, 2: 0}, {1: 1}, {0: 1, 1: 1, 2: 1}, "node 2 is no candidate"),
        ({0: None}, {0: 1}, {0: -1}, "negative"),
        ({0: None}, {0: float("nan")}, {0: 1}, "NaN"),
        ({0: None}, {0: 1}, {0: float("inf")}, "Infinity"),
    ],
)
def test_what_is_no_tree_or_no_number_is_refused(parents, values, costs, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=why):
        select(Candidates(parents, values, costs))


def test_negative_values_cost_and_are_kept_only_for_their_cluster() -> None:
    costs = dict.fromkeys(fork(), 0)
    assert select(Candidates(fork(), {3: -1, 4: 2, 5: -3}, costs, {3: 0, 4: 1, 5: 2}, 2)).leaves == (3, 4)
    with pytest.raises(ValueError, match="negative"):
        select_within(Candidates(fork(), {3: -1, 4: 2, 5: 3}, costs), 5)


def test_a_deep_tree_needs_no_deep_stack() -> None:
    # A comb of 3,000 nodes: a leaf at every node of one long path.
    parents: dict[int, int | None] = {0: None}
    spine = 0
    leaves = []
    for _ in range(1500):
        parents[len(parents)] = spine
        leaves.append(len(parents) - 1)
        parents[len(parents)] = spine
        spine = len(parents) - 1
    leaves.append(spine)
    values = {leaf: 1 if leaf == leaves[-1] else 0 for leaf in leaves}
    cheap = Candidates(parents, values, dict.fromkeys(parents, 0))
    assert select(cheap).leaves == tuple(leaves)
    dear = Candidates(parents, values, dict.fromkeys(parents, 1), {leaf: leaf % 7 for leaf in leaves}, 3)
    assert select(dear).worth == by_hand_on_the_comb()
    # Nothing pays: the root and the first leaf are the least bad.
    assert select(Candidates(parents, values, dict.fromkeys(parents, 2))) == Selection((leaves[0],), -4.0)


def by_hand_on_the_comb() -> float:
    # The first six leaves in the spine, at depths 1 to 6, have labels 1, 3, 5, 0, 2, 4; the seventh, depth 7, has 6.
    # Each next one costs its leaf and one more spine node, 2, and earns 3: seven leaves, root included, 7 * 3 - 14.
    return 7 * 3 - (1 + 6 + 7)
