"""The search loop: expand, score, allocate, release, wave by wave over many questions at once."""

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Integral
from typing import Any

from palmette.backends.backend import Backend, Expansion
from palmette.errors import BackendError, ConfigError
from palmette.score.scorer import Candidate, Scorer
from palmette.search.answer import aggregate_scores
from palmette.search.cluster import Clusterer
from palmette.settings import Aggregate
from palmette.strategy import Children, Frontier, Strategy
from palmette.tasks.task import Question
from palmette.tree import Node, Tree


@dataclass(frozen=True)
class Limits:
    """Where a branch has to stop: `depth` steps, `step_tokens` a step, `total_tokens` generated along a path.

    A step ends with the text `step_end`, a solution with the model's end token or the text `stop`. `room` is the number
    of KV tokens that one question's tree may hold, None without a limit.
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
    """One question while its tree grows. `grants` are the children to grow in the next wave."""

    question: Question
    tree: Tree
    grants: Children
    wave: int = 0
    kv_tokens: list[int] = field(default_factory=list)
    separate_kv_tokens: list[int] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    clusters: dict[int, int] = field(default_factory=dict)
    """Labels that the last allocation saw; empty where nothing was grouped."""
    out_of_room: bool = False
    """Whether the tree ended because not one more token fit its room."""
    ended: list[int] = field(default_factory=list)
    """Leaves that were not pruned: finished, or stopped by a limit."""

    def finished(self) -> list[Node]:
        """Return the leaves that ended their solution."""
        return [node for node in self.tree.nodes if node.finished]


class Observer:
    """What the loop tells while it runs; a subclass overrides what it wants to hear."""

    def started(self, growth: Growth) -> None:
        """Hear that a question's prompt stands."""

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Hear that all questions in flight have grown by a wave: the moment at which most is held."""

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Hear that a wave is scored and the next children are granted."""


def node_seed(seed: int, question: str, node: int) -> int:
    """Return the seed that belongs to a node: the same whatever runs beside it."""
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
    """Grow a tree for every question; yield each one that will not grow any more, as soon as it does not.

    A new question starts as soon as another has finished. However the loop ends, the backend is left with none of its
    nodes.
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
            if growth.held:
                backend.release(growth.question.id, sorted(growth.held))


def _start(question: Question, backend: Backend, strategy: Strategy, limits: Limits) -> Growth:
    prompt = backend.encode(question.messages)
    if not prompt:
        raise ConfigError(f"question {question.id} has an empty prompt: check task.prompt")
    tree = Tree(prompt)
    frontier = Frontier(tree, (0,), (1.0,))
    grants = _granted(strategy, frontier, limits.width, limits.room)
    tree.nodes[0].state = "kept"
    return Growth(question, tree, grants, held={0})


def _expand(growing: Sequence[Growth], backend: Backend, limits: Limits, seed: int) -> list[list[Node]]:
    """Grow all granted children of all questions in one call and hang them into their trees."""
    expansions: list[Expansion] = []
    for growth in growing:
        next_id = len(growth.tree.nodes)
        longest = _longest_step(growth, limits)
        for parent, count in growth.grants.items():
            prefix = growth.tree.path_tokens(parent)
            spent = len(prefix) - len(growth.tree.prompt_tokens)
            room = min(longest, limits.total_tokens - spent)
            for _ in range(count):
                own_seed = node_seed(seed, growth.question.id, next_id)
                expansions.append(
                    Expansion(growth.question.id, parent, prefix, own_seed, room, next_id, limits.step_end, limits.stop)
                )
                next_id += 1
    grown = backend.expand(expansions)
    if len(grown) != len(expansions):
        raise RuntimeError(f"the backend returned {len(grown)} steps for {len(expansions)} expansions")
    steps = iter(grown)
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
        growth.held.update(leaves)
        added.append(nodes)
    return added


def _score(growing: Sequence[Growth], added: Sequence[Sequence[Node]], scorer: Scorer) -> None:
    nodes, candidates = [], []
    for growth, new in zip(growing, added, strict=True):
        for node in new:
            steps = tuple(step.text for step in growth.tree.steps(node.id))
            candidates.append(Candidate(growth.question.messages, steps, node.finished))
            nodes.append(node)
    for node, score in zip(nodes, scorer.score(candidates), strict=True):
        if not 0 <= score <= 1:  # NaN is neither.
            raise BackendError(
                f"the reward model scored a step {score}, and scores lie in 0 to 1: its weights are damaged, or it "
                f"is no reward model. The step: {node.text[:60]!r}"
            )
        node.score = score


def _longest_step(growth: Growth, limits: Limits) -> int:
    """Return how long a step may be, so that all steps of the wave together stay within the room."""
    if limits.room is None or not growth.grants:
        return limits.step_tokens
    free = limits.room - growth.tree.unique_tokens(growth.grants)
    return min(limits.step_tokens, free // sum(growth.grants.values()))


def _frontier(growth: Growth, added: Sequence[Node], limits: Limits, aggregate: Aggregate) -> Frontier | None:
    """Return the leaves that may go on, None where every branch has ended."""
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
    """Group the last steps of every frontier that has a choice, in one call for all questions."""
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
    """Grant the next children; a tree that gets none ends where it stands."""
    if frontier is None:
        growth.grants = {}
        return
    width = limits.width - len(growth.finished())
    growth.grants = _granted(strategy, frontier, width, limits.room)
    for leaf in growth.grants:
        growth.tree.nodes[leaf].state = "kept"
    if not growth.grants:
        growth.ended += frontier.leaves
        for leaf in frontier.leaves:
            growth.tree.nodes[leaf].state = "stopped"
        growth.out_of_room = limits.room is not None


def _granted(strategy: Strategy, frontier: Frontier, width: int, room: int | None) -> Children:
    """Return what the strategy gives to whom, without zeros. Raises ConfigError where it breaks its contract."""
    children: Any = strategy.allocate(frontier, width, room)  # A user's own code may return anything.
    if not isinstance(children, Mapping):
        raise ConfigError(f"strategy {strategy.name} returned a {type(children).__name__}, not children by leaf")
    leaves = set(frontier.leaves)
    for leaf, count in children.items():
        if leaf not in leaves:
            raise ConfigError(
                f"strategy {strategy.name} gave children to node {leaf!r}, which is not one of the open leaves"
            )
        if not isinstance(count, Integral) or count < 0:
            raise ConfigError(f"strategy {strategy.name} gave {count!r} children to node {leaf}: give whole numbers")
    granted = {leaf: int(count) for leaf, count in children.items() if count}
    if sum(granted.values()) > width:
        raise ConfigError(
            f"strategy {strategy.name} gave {sum(granted.values())} children where the width has {width} left: "
            f"allocate returns numbers that sum to at most the width it is given"
        )
    return granted


def _release(growth: Growth, backend: Backend) -> None:
    """Give back every node that no granted branch runs through."""
    needed = {step.id for parent in growth.grants for step in growth.tree.path(parent)}
    gone = sorted(growth.held - needed)
    if gone:
        backend.release(growth.question.id, gone)
    growth.held &= needed
