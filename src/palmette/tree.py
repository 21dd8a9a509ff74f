"""Trees of reasoning steps, with exact counts of the tokens their branches share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from palmette.units import one_line

State = Literal["open", "kept", "pruned", "finished", "stopped"]
"""Of a step: not decided yet; has children; a leaf that the strategy gave up; a solution's end; ended by a limit."""


@dataclass
class Node:
    """One step. The root (id 0) holds the prompt; `score` stays None until a scorer has seen the step.

    `cluster` is shared by steps of one wave that say the same, None where nothing was grouped. `outcome` and `reward`
    are the judge's verdict on the solution that ends here, None where there is none.
    """

    id: int
    parent: int | None
    depth: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finished: bool
    score: float | None = None
    state: State = "open"
    cluster: int | None = None
    outcome: str | None = None
    reward: float | None = None


@dataclass
class Tree:
    """All steps tried on one question. Ids count up from 0, so an older node has a smaller id.

    The steps' log-probabilities are at `temperature`.
    """

    prompt_tokens: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)
    temperature: float = 1.0

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

    def children(self, node: int) -> list[Node]:
        """Return the steps that follow a node, oldest first."""
        return [step for step in self.nodes[node + 1 :] if step.parent == node]

    def to_dict(self) -> dict[str, Any]:
        """Return the prompt's tokens and every step as JSON values."""
        steps = [{name: value for name, value in vars(node).items() if value is not None} for node in self.nodes[1:]]
        return {"prompt_tokens": list(self.prompt_tokens), "temperature": self.temperature, "steps": steps}

    def __str__(self) -> str:
        """Draw the tree as text: a line for each step with its score and what became of it."""
        below: dict[int | None, list[Node]] = {}
        for node in self.nodes[1:]:
            below.setdefault(node.parent, []).append(node)
        lines = ["prompt"]
        pending = [(node, "", place == 0) for place, node in enumerate(reversed(below.get(0, [])))]
        while pending:
            node, indent, is_last = pending.pop()
            lines.append(f"{indent}{'└─' if is_last else '├─'} {_described(node)}")
            deeper = indent + ("   " if is_last else "│  ")
            pending += [(child, deeper, place == 0) for place, child in enumerate(reversed(below.get(node.id, [])))]
        return "\n".join(lines)

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


def _described(node: Node) -> str:
    """Return a step in one line; control characters in a model's text cannot draw on a terminal."""
    score = "" if node.score is None else f"{node.score:.2f} "
    text = one_line(node.text.strip(), 100)
    told = {"kept": "", "open": ""}.get(node.state, f"  [{node.state}{'' if node.outcome is None else ', '}")
    verdict = (node.outcome or "").replace("_", " ")
    return f"{score}{text}{told}{verdict + ']' if told else ''}"
