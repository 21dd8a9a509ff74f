"""The tree of reasoning steps of one question, with counts of the KV tokens that its branches hold."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palmette.prefixes import KvCounts, Prefixes
from palmette.units import one_line

State = Literal["open", "kept", "pruned", "finished", "stopped"]
"""State of a step. open: not decided yet; kept: has children; pruned: a leaf to which the strategy gave no children;
finished: the last step of a solution; stopped: a leaf that a limit ended."""


@dataclass
class Node:
    """One step. The root (id 0) holds the prompt. `score` is None until a scorer has scored the step.

    Steps of one wave with the same `cluster` have the same meaning; None if steps were not clustered. `outcome` and
    `reward` are the judge's verdict on the solution that ends with this step, None without a verdict.
    """

    id: int
    parent: int | None
    depth: int
    tokens: Sequence[int]
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
    """All steps generated for one question. The id of a node is its index in `nodes`: an older node has a smaller id.

    `logprobs` of the steps are those at sampling temperature `temperature`.
    """

    prompt_tokens: Sequence[int]
    nodes: list[Node] = field(default_factory=list)
    temperature: float = 1.0
    prefixes: Prefixes = field(init=False, repr=False, compare=False)
    """The distinct token prefixes of the paths whose `place` was asked for."""
    _places: list[int] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if not self.nodes:
            self.nodes.append(Node(0, None, 0, self.prompt_tokens, "", (), finished=False))
        self.prefixes = Prefixes(len(self.prompt_tokens))

    def add(
        self, parent: int, tokens: tuple[int, ...], text: str, logprobs: tuple[float, ...], *, finished: bool
    ) -> Node:
        """Add a step below `parent` and return its node. Raises ValueError if `parent` is finished."""
        above = self.nodes[parent]
        if above.finished:
            raise ValueError(f"node {parent} is finished: it cannot have children")
        node = Node(len(self.nodes), parent, above.depth + 1, tokens, text, logprobs, finished)
        self.nodes.append(node)
        return node

    def path(self, node: int) -> list[Node]:
        """Return the nodes from the root down to `node`, both included."""
        return list(reversed(list(self._upward(node))))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Return all tokens from the start of the prompt to the end of this step."""
        return tuple(token for step in self.path(node) for token in step.tokens)

    def steps(self, node: int) -> list[Node]:
        """Return the nodes from the first step down to `node`: the path without the prompt."""
        return self.path(node)[1:]

    def solution(self, node: int) -> str:
        """Return the texts of all steps on the path to `node`, joined."""
        return "".join(step.text for step in self.steps(node))

    def scores(self, node: int) -> list[float]:
        """Return the scores of the steps on the path to `node`, without steps that were not scored."""
        return [step.score for step in self.steps(node) if step.score is not None]

    def leaves(self) -> list[int]:
        """Return the nodes without children, oldest first."""
        parents = {node.parent for node in self.nodes}
        return [node.id for node in self.nodes if node.id not in parents]

    def generated_tokens(self) -> int:
        """Count the tokens of all steps, which the policy generated; the prompt is not counted."""
        return sum(len(node.tokens) for node in self.nodes[1:])

    def children(self, node: int) -> list[Node]:
        """Return the children of a node, oldest first."""
        return [step for step in self.nodes[node + 1 :] if step.parent == node]

    def to_dict(self) -> dict[str, Any]:
        """Return the prompt's tokens and every step as JSON values; fields that are None are left out."""
        steps = [{name: value for name, value in vars(node).items() if value is not None} for node in self.nodes[1:]]
        return {"prompt_tokens": list(self.prompt_tokens), "temperature": self.temperature, "steps": steps}

    def __str__(self) -> str:
        """Return the tree as text: one line for each step with its score, its text and, unless kept, its state."""
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

    def place(self, node: int) -> int:
        """Return the place of a node's path in `prefixes`. Nodes whose paths have the same tokens have the same one."""
        for step in self.nodes[len(self._places) : node + 1]:
            above = None if step.parent is None else self._places[step.parent]
            self._places.append(0 if above is None else self.prefixes.add(above, step.tokens, step.id))
        return self._places[node]

    def kv_counts(self, leaves: Iterable[int]) -> KvCounts:
        """Count the KV tokens of branches that have just written these leaves, prompt included.

        `held` is what the engine's pool and any radix cache hold for them: every distinct prefix once, so siblings with
        equal tokens once too. A leaf's last token has no KV yet: that is computed when the branch goes on.
        """
        return self.prefixes.counts(Counter(map(self.place, leaves)))

    def distinct_tokens(self, leaves: Iterable[int]) -> int:
        """Count the distinct prefixes of the leaves' paths, prompt included: the KV with which all leaves can go on."""
        return self.prefixes.distinct([self.place(leaf) for leaf in leaves])

    def _upward(self, node: int) -> Iterator[Node]:
        current: int | None = node
        while current is not None:
            step = self.nodes[current]
            yield step
            current = step.parent


def _described(node: Node) -> str:
    """Return a step as one line without control characters, which model text could use to write on the terminal."""
    score = "" if node.score is None else f"{node.score:.2f} "
    text = one_line(node.text.strip(), 100)
    state = {"kept": "", "open": ""}.get(node.state, f"  [{node.state}{'' if node.outcome is None else ', '}")
    outcome = one_line((node.outcome or "").replace("_", " "), 80)
    return f"{score}{text}{state}{outcome + ']' if state else ''}"
