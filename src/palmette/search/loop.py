"""The search loop: in each wave it expands, scores, allocates children and releases, for many questions at once."""

import hashlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from palmette.backends.backend import Backend, Expansion
from palmette.score.scorer import Candidate, Scorer
from palmette.search.answer import aggregate_scores
from palmette.search.checked import children_of, prompt_of, release, scores_of, steps_of
from palmette.search.cluster import Clusterer
from palmette.settings import Aggregate
from palmette.strategy import Children, Frontier, Strategy
from palmette.tasks.task import Question
from palmette.tree import Node, Tree


@dataclass(frozen=True)
class Limits:
    """Limits of the search of one question, and how many questions are searched at once (`questions_in_flight`).

    A branch is stopped after `depth` steps or `total_tokens` generated tokens; a step is cut after `step_tokens`
    tokens. A step ends with the text `step_end`, a solution with the model's end token or the text `stop`. `room` is
    the number of KV tokens that the tree of one question may hold, None without a limit.
    """

    width: int
    depth: int
    step_tokens: int
    total_tokens: int
    questions_in_flight: int
    room: int | None = None
    step_end: str = "\n"
    stop: str | None = None


@dataclass
class Growth:
    """The state of one question during the search. `grants` is how many children each leaf gets in the next wave.

    `kv_tokens` and `separate_kv_tokens` have one entry for each wave: the tokens on the paths of the steps it added,
    with each node counted once, and with every path counted in full.
    """

    question: Question
    tree: Tree
    grants: Children
    wave: int = 0
    kv_tokens: list[int] = field(default_factory=list)
    separate_kv_tokens: list[int] = field(default_factory=list)
    cached: set[int] = field(default_factory=set)
    """Nodes whose KV cache the backend may keep: asked for and not released yet."""
    clusters: dict[int, int] = field(default_factory=dict)
    """Cluster labels of the leaves of the last frontier; empty if they were not clustered."""
    out_of_room: bool = False
    """Whether the search ended because the tree had no room for another token."""
    ended: list[int] = field(default_factory=list)
    """Leaves that were not pruned: finished, or stopped by a limit."""

    def finished(self) -> list[Node]:
        """Return the finished leaves, whose solution is complete."""
        return [node for node in self.tree.nodes if node.finished]


class Observer:
    """Callbacks of the loop; each does nothing unless a subclass overrides it."""

    def started(self, growth: Growth) -> None:
        """Called after the tree of a question was created, before its first wave."""

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Called after a wave was expanded and scored for all questions in flight, when most KV tokens are held."""

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Called for each question after its next children were granted; `added` are the steps of this wave."""


def node_seed(seed: int, question: str, node: int) -> int:
    """Return the sampling seed of a node. It depends on the run's seed, the question and the node id alone."""
    digest = hashlib.blake2b(f"{seed}\0{question}\0{node}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


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

    Up to `limits.questions_in_flight` questions are searched at once; when one ends, the next one starts. Every wave is
    one call of `backend.expand` and one of `scorer.score` for all of them. However the loop ends, all nodes are
    released. Every part is called through `checked`: ConfigError for an empty prompt and for a strategy that breaks its
    contract, BackendError for a backend or a scorer that does, and what a part raises is chained.
    """
    waiting = iter(questions)
    growing: list[Growth] = []
    try:
        while True:
            for question in islice(waiting, limits.questions_in_flight - len(growing)):
                growth = _start(question, backend, strategy, limits)
                growing.append(growth)
                observer.started(growth)
            if not growing:
                return
            added = _expand(growing, backend, limits, seed)
            if scorer is not None:
                _score(growing, added, scorer)
            observer.wave_grown(growing)
            frontiers = [
                _frontier(growth, nodes, limits, aggregate) for growth, nodes in zip(growing, added, strict=True)
            ]
            if clusterer is not None:
                _cluster(growing, frontiers, clusterer)
            for growth, frontier, nodes in zip(growing, frontiers, added, strict=True):
                _allocate(growth, frontier, strategy, limits)
                _release(growth, backend)
                observer.wave_done(growth, nodes)
                growth.wave += 1
                if not growth.grants:
                    yield growth
            growing = [growth for growth in growing if growth.grants]
    finally:
        for growth in growing:
            if growth.cached:
                release(backend, growth.question, sorted(growth.cached))


def _start(question: Question, backend: Backend, strategy: Strategy, limits: Limits) -> Growth:
    tree = Tree(prompt_of(backend, question))
    frontier = Frontier(tree, (0,), (1.0,))
    grants = children_of(strategy, frontier, limits.width, limits.room)
    tree.nodes[0].state = "kept"
    return Growth(question, tree, grants, cached={0})


def _expand(growing: Sequence[Growth], backend: Backend, limits: Limits, seed: int) -> list[list[Node]]:
    """Generate all granted children of all questions in one call, add them to the trees, return them by question."""
    expansions: list[Expansion] = []
    for growth in growing:
        name, next_id = growth.question.id, len(growth.tree.nodes)
        longest = _longest_step(growth, limits)
        for parent, count in growth.grants.items():
            prefix = growth.tree.path_tokens(parent)
            spent = len(prefix) - len(growth.tree.prompt_tokens)
            most_tokens = min(longest, limits.total_tokens - spent)
            for _ in range(count):
                child_seed = node_seed(seed, name, next_id)
                expansions.append(
                    Expansion(name, parent, prefix, child_seed, most_tokens, next_id, limits.step_end, limits.stop)
                )
                next_id += 1
        growth.cached.update(range(len(growth.tree.nodes), next_id))  # Released also if `expand` fails halfway.
    steps = iter(steps_of(backend, expansions))
    added = []
    for growth in growing:
        nodes = []
        for parent, count in growth.grants.items():
            for step in islice(steps, count):
                growth.tree.temperature = step.temperature
                nodes.append(
                    growth.tree.add(parent, step.tokens, step.text, step.logprobs, finished=step.finish == "end")
                )
        leaves = [node.id for node in nodes]
        growth.kv_tokens.append(growth.tree.unique_tokens(leaves))
        growth.separate_kv_tokens.append(growth.tree.separate_tokens(leaves))
        added.append(nodes)
    return added


def _score(growing: Sequence[Growth], added: Sequence[Sequence[Node]], scorer: Scorer) -> None:
    nodes, candidates = [], []
    for growth, new in zip(growing, added, strict=True):
        for node in new:
            steps = tuple(step.text for step in growth.tree.steps(node.id))
            candidates.append(Candidate(growth.question.messages, steps, node.finished))
            nodes.append(node)
    for node, score in zip(nodes, scores_of(scorer, candidates), strict=True):
        node.score = score


def _longest_step(growth: Growth, limits: Limits) -> int:
    """Return the most tokens a step of the next wave may have, so that all of its steps fit into the room."""
    if limits.room is None or not growth.grants:
        return limits.step_tokens
    free = limits.room - growth.tree.unique_tokens(growth.grants)
    return min(limits.step_tokens, free // sum(growth.grants.values()))


def _frontier(growth: Growth, added: Sequence[Node], limits: Limits, aggregate: Aggregate) -> Frontier | None:
    """Return the open leaves with their aggregated scores, None if no leaf is open.

    Also sets the state of the added nodes; an open leaf counts as pruned until `_allocate` grants it children.
    """
    tree = growth.tree
    prompt = len(tree.prompt_tokens)
    open_leaves = tuple(
        node.id
        for node in added
        if not node.finished
        and node.depth < limits.depth
        and len(tree.path_tokens(node.id)) - prompt < limits.total_tokens
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
    for leaf in growth.grants:
        growth.tree.nodes[leaf].state = "kept"
    if not growth.grants:
        growth.ended += frontier.leaves
        for leaf in frontier.leaves:
            growth.tree.nodes[leaf].state = "stopped"
        growth.out_of_room = limits.room is not None


def _release(growth: Growth, backend: Backend) -> None:
    """Release the KV cache of every node that is not on the path of a leaf with granted children."""
    needed = {step.id for parent in growth.grants for step in growth.tree.path(parent)}
    gone = sorted(growth.cached - needed)
    if gone:
        release(backend, growth.question, gone)
    growth.cached &= needed
