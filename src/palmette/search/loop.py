"""The search loop: a question's wave is expanded, scored and followed by the next, whatever the other questions do."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from palmette.backends.backend import Backend, Expansion, Step
from palmette.backends.blocking import as_started
from palmette.errors import ConfigError
from palmette.score.scorer import Scorer
from palmette.search.answer import aggregate_scores
from palmette.search.checked import Flight, children_of, forget, prompt_of
from palmette.search.cluster import Clusterer
from palmette.search.expansions import handles_of_branch, next_of_branch, of_wave
from palmette.search.growth import Growth, Limits, Observer
from palmette.search.scoring import Scoring
from palmette.settings import Aggregate
from palmette.strategy import Frontier, Strategy
from palmette.tasks.task import Question
from palmette.tree import Node, Tree


def search(
    questions: Iterable[Question],
    backend: Backend,
    scorer: Scorer | None,
    strategy: Strategy,
    limits: Limits,
    *,
    seed: int,
    aggregate: Aggregate,
    observer: Observer,
    clusterer: Clusterer | None = None,
) -> Generator[Growth, None, None]:
    """Search every question; yield the state of each one when its tree does not grow any more.

    Up to `limits.questions_in_flight` questions are searched at once; when one ends, the next one starts. A question
    goes on when all steps of its wave are generated and scored. All waves that are complete at that moment are scored
    in one call; where the scorer can begin and be asked later, other questions go on meanwhile.
    Branches of an independent strategy do not wait for each other, unless a room limits them together: their steps are
    added to the tree in the order of waves all the same, so no tree depends on what is done first.

    However the loop ends, all nodes are released. Every part is called through `checked`: ConfigError for an empty
    prompt and for a strategy that breaks its contract, BackendError for a backend or a scorer that does, and what a
    part raises is chained.
    """
    flight = Flight(as_started(backend))
    is_independent = strategy.independent and limits.room is None
    waiting = iter(questions)
    growing: dict[str, Growth] = {}
    scoring = Scoring(scorer, flight.interrupt)
    try:
        while True:
            for question in islice(waiting, limits.questions_in_flight - len(growing)):
                growth = growing[question.id] = _start(question, backend, strategy, limits)
                observer.started(growth)
                _ask(growth, flight, of_wave(growth, limits, seed))
            if not growing:
                return
            waves = scoring.finished()
            while not waves:
                complete = [each for each in growing.values() if each not in scoring and each.wave_is_complete()]
                is_idle = not complete and not flight and len(scoring) > 0
                if complete:
                    scoring.start([(growth, _add_wave(growth)) for growth in complete])
                elif not is_idle:
                    flight.start(_landed(growing, flight, limits, seed, is_independent=is_independent))
                waves = scoring.finished(wait=is_idle)
            observer.wave_grown(list(growing.values()))
            ready, added = [growth for growth, _ in waves], [nodes for _, nodes in waves]
            frontiers = [_frontier(growth, nodes, limits, aggregate) for growth, nodes in waves]
            if clusterer is not None:
                _cluster(ready, frontiers, clusterer)
            for growth, frontier, nodes in zip(ready, frontiers, added, strict=True):
                _allocate(growth, frontier, strategy, limits)
                _release(growth, flight)
                observer.wave_done(growth, nodes)
                growth.wave += 1
                if not growth.grants:
                    del growing[growth.question.id]
                    forget(scorer, growth.question)
                    yield growth
                elif is_independent:
                    growth.awaited = [(leaf, growth.handles[leaf] + limits.width) for leaf in growth.grants]
                else:
                    _ask(growth, flight, of_wave(growth, limits, seed))
    finally:
        scoring.close()
        for growth in growing.values():
            if growth.cached:
                flight.release(growth.question, sorted(growth.cached))
            forget(scorer, growth.question)


def _start(question: Question, backend: Backend, strategy: Strategy, limits: Limits) -> Growth:
    tree = Tree(prompt_of(backend, question))
    frontier = Frontier(tree, (0,), (1.0,))
    grants = children_of(strategy, frontier, limits.width, limits.room)
    tree.nodes[0].state = "kept"
    return Growth(question, tree, grants)


def _ask(growth: Growth, flight: Flight, expansions: Sequence[Expansion]) -> None:
    """Start all steps of the next wave."""
    growth.awaited = [(expansion.parent, _handle(expansion)) for expansion in expansions]
    growth.cached.update(handle for _, handle in growth.awaited)  # Released also if `start` fails halfway.
    if expansions:
        flight.start(expansions)


def _landed(
    growing: Mapping[str, Growth], flight: Flight, limits: Limits, seed: int, *, is_independent: bool
) -> list[Expansion]:
    """Wait for steps and give them to their questions; return what follows on branches that grow by themselves."""
    following: list[Expansion] = []
    for expansion, step in flight.finished():
        growth = growing[expansion.question]
        growth.steps[_handle(expansion)] = step
        if is_independent:
            following += _go_on(growth, flight, expansion, step, limits, seed)
    return following


def _go_on(growth: Growth, flight: Flight, done: Expansion, step: Step, limits: Limits, seed: int) -> list[Expansion]:
    """Return what to ask for next on a branch that grows by itself; if it has ended, release its nodes."""
    following = next_of_branch(growth, done, step, limits, seed)
    if following is not None:
        growth.cached.add(_handle(following))
        return [following]
    ended = handles_of_branch(_handle(done), limits)
    growth.cached.difference_update(ended)
    flight.release(growth.question, ended)
    return []


def _handle(expansion: Expansion) -> int:
    assert expansion.node is not None
    return expansion.node


def _add_wave(growth: Growth) -> list[Node]:
    """Add the steps of a complete wave to the tree and return their nodes."""
    nodes = []
    for parent, handle in growth.awaited:
        step = growth.steps.pop(handle)
        growth.tree.temperature = step.temperature
        nodes.append(growth.tree.add(parent, step.tokens, step.text, step.logprobs, finished=step.finish == "end"))
        growth.handles.append(handle)
    growth.kv.append(growth.tree.kv_counts(node.id for node in nodes))
    return nodes


def _frontier(growth: Growth, added: Sequence[Node], limits: Limits, aggregate: Aggregate) -> Frontier | None:
    """Return the open leaves with their aggregated scores, None if no leaf is open.

    Also sets the state of the added nodes; an open leaf counts as pruned until `_allocate` grants it children.
    """
    tree = growth.tree
    prompt = len(tree.prompt_tokens)
    open_leaves = tuple(
        node.id
        for node in added
        if limits.is_open(node.depth, len(tree.path_tokens(node.id)) - prompt, finished=node.finished)
    )
    for node in added:
        node.state = "finished" if node.finished else "pruned" if node.id in open_leaves else "stopped"
    growth.ended += [node.id for node in added if node.id not in open_leaves]
    if not open_leaves:
        return None
    return Frontier(tree, open_leaves, tuple(aggregate_scores(tree.scores(leaf), aggregate) for leaf in open_leaves))


def _cluster(growing: Sequence[Growth], frontiers: list[Frontier | None], clusterer: Clusterer) -> None:
    """Cluster the last steps of every frontier with two or more leaves, in one call for all questions."""
    asked = {
        place: frontier for place, frontier in enumerate(frontiers) if frontier is not None and len(frontier.leaves) > 1
    }
    texts = [[frontier.tree.nodes[leaf].text for leaf in frontier.leaves] for frontier in asked.values()]
    for growth in growing:
        growth.clusters = {}
    for (place, frontier), labels in zip(asked.items(), clusterer(texts) if texts else [], strict=True):
        growing[place].clusters = dict(zip(frontier.leaves, labels, strict=True))
        for leaf, label in growing[place].clusters.items():
            frontier.tree.nodes[leaf].cluster = label
        frontiers[place] = replace(frontier, clusters=growing[place].clusters)


def _allocate(growth: Growth, frontier: Frontier | None, strategy: Strategy, limits: Limits) -> None:
    """Ask the strategy for the next children; if it grants none, the open leaves are stopped and the tree ends."""
    if frontier is None:
        growth.grants = {}
        return
    width = limits.width - len(growth.finished())
    growth.grants = children_of(strategy, frontier, width, limits.room)
    if strategy.independent and growth.grants != dict.fromkeys(frontier.leaves, 1):
        raise ConfigError(
            f"strategy {strategy.name} is independent, but did not give each of {len(frontier.leaves)} open leaves one "
            f"child: return dict.fromkeys(frontier.leaves, 1), or let `independent` be False"
        )
    for leaf in growth.grants:
        growth.tree.nodes[leaf].state = "kept"
    if not growth.grants:
        growth.ended += frontier.leaves
        for leaf in frontier.leaves:
            growth.tree.nodes[leaf].state = "stopped"
        growth.out_of_room = limits.room is not None


def _release(growth: Growth, flight: Flight) -> None:
    """Release the KV cache of every node in the tree that is not on the path of a leaf with granted children."""
    needed = {growth.handles[step.id] for parent in growth.grants for step in growth.tree.path(parent)}
    gone = (growth.cached & set(growth.handles)) - needed
    if gone:
        flight.release(growth.question, sorted(gone))
    growth.cached -= gone
