"""The state of one question during a search, the limits of its tree, and who is told of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from palmette.backends.backend import Step
from palmette.prefixes import KvCounts
from palmette.strategy import Children
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

    def is_open(self, depth: int, generated_tokens: int, *, finished: bool) -> bool:
        """Return whether a branch may go on after a step at this depth, with so many tokens generated on its path."""
        return not finished and depth < self.depth and generated_tokens < self.total_tokens


@dataclass
class Growth:
    """The state of one question during the search. `grants` is how many children each leaf gets in the next wave.

    `kv` has one entry for each wave: the KV tokens of the branches that it has written, before any of them is pruned.
    """

    question: Question
    tree: Tree
    grants: Children
    wave: int = 0
    kv: list[KvCounts] = field(default_factory=list)
    clusters: dict[int, int] = field(default_factory=dict)
    """Cluster labels of the leaves of the last frontier; empty if they were not clustered."""
    out_of_room: bool = False
    """Whether the search ended because the tree had no room for another token."""
    ended: list[int] = field(default_factory=list)
    """Leaves that were not pruned: finished, or stopped by a limit."""
    handles: list[int] = field(default_factory=lambda: [0])
    """What the backend calls each node, by node id: the node id itself, except where branches grow independently."""
    cached: set[int] = field(default_factory=lambda: {0})
    """Handles whose KV cache the backend may keep: asked for and not released yet."""
    awaited: list[tuple[int, int]] = field(default_factory=list)
    """The parent and the handle of every step of the present wave, in the order in which they are added to the tree."""
    steps: dict[int, Step] = field(default_factory=dict)
    """Steps by handle that are generated and not in the tree yet."""

    def finished(self) -> list[Node]:
        """Return the finished leaves, whose solution is complete."""
        return [node for node in self.tree.nodes if node.finished]

    def wave_is_complete(self) -> bool:
        """Return whether all steps of the present wave are generated."""
        return all(handle in self.steps for _, handle in self.awaited)


class Observer:
    """Callbacks of the loop; each does nothing unless a subclass overrides it."""

    def started(self, growth: Growth) -> None:
        """Called after the tree of a question was created, before its first wave."""

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Called with all questions in flight after waves of some of them were generated and scored."""

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Called for each question after its next children were granted; `added` are the steps of this wave."""


def node_seed(seed: int, question: str, handle: int) -> int:
    """Return the sampling seed of a step. It depends on the run's seed, the question and the step's handle alone."""
    digest = hashlib.blake2b(f"{seed}\0{question}\0{handle}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
