"""Trees of reasoning steps, with exact counts of the tokens their branches share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass
class Node:
    """One step. The root (id 0) holds the prompt; `score` stays None until a scorer has seen the step."""

    id: int
    parent: int | None
    depth: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finished: bool
    score: float | None = None


@dataclass
class Tree:
    """All steps tried on one question. Ids count up from 0, so an older node has a smaller id."""

    prompt_tokens: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.nodes:
            self.nodes.append(Node(0, None, 0, self.prompt_tokens, "", (), finished=False))

    def add(
        self, parent: int, tokens: tuple[int, ...], text: str, logprobs: tuple[float, ...], *, finished: bool
    ) -> Node:
        """Hang a step below `parent` and return it."""
        above = self.nodes[parent]
        if above.finished:
            raise ValueError(f"node {parent} is finished: nothing can follow it")
        node = Node(len(self.nodes), parent, above.depth + 1, tokens, text, logprobs, finished)
        self.nodes.append(node)
        return node

    def path(self, node: int) -> list[Node]:
        """Return the nodes from the root down to `node`, both included."""
        return list(reversed(list(self._upward(node))))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Return every token from the prompt's first to the step's last."""
        return tuple(token for step in self.path(node) for token in step.tokens)

    def steps(self, node: int) -> list[Node]:
        """Return the path without the prompt."""
        return self.path(node)[1:]

    def solution(self, node: int) -> str:
        """Return the text of all steps down to `node`."""
        return "".join(step.text for step in self.steps(node))

    def scores(self, node: int) -> list[float]:
        """Return the scores along the path; a step that was never scored is left out."""
        return [step.score for step in self.steps(node) if step.score is not None]

    def leaves(self) -> list[int]:
        """Return the nodes without children, oldest first."""
        parents = {node.parent for node in self.nodes}
        return [node.id for node in self.nodes if node.id not in parents]

    def generated_tokens(self) -> int:
        """Count the tokens of all steps: what the policy was asked to write."""
        return sum(len(node.tokens) for node in self.nodes[1:])

    def unique_tokens(self, leaves: Iterable[int]) -> int:
        """Count the tokens that a cache holds when each node on the leaves' paths is stored once, prompt included."""
        return sum(len(self.nodes[node].tokens) for node in self._covered(leaves))

    def separate_tokens(self, leaves: Iterable[int]) -> int:
        """Count the tokens that a cache of its own for each leaf would hold, prompt included."""
        return sum(len(step.tokens) for leaf in leaves for step in self._upward(leaf))

    def shared_tokens(self, leaves: Iterable[int]) -> int:
        """Count the tokens, each once, that lie on the paths of two or more leaves."""
        uses: dict[int, int] = {}
        for leaf in leaves:
            for step in self._upward(leaf):
                uses[step.id] = uses.get(step.id, 0) + 1
        return sum(len(self.nodes[node].tokens) for node, count in uses.items() if count > 1)

    def _covered(self, leaves: Iterable[int]) -> set[int]:
        covered: set[int] = set()
        for leaf in leaves:
            for step in self._upward(leaf):
                if step.id in covered:
                    break
                covered.add(step.id)
        return covered

    def _upward(self, node: int) -> Iterator[Node]:
        current: int | None = node
        while current is not None:
            step = self.nodes[current]
            yield step
            current = step.parent
