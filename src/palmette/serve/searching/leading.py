"""What a stream shows of a tree while it grows: the branch that leads, or every branch of plain text. Pure."""

from collections.abc import Sequence

from palmette.search.answer import aggregate_scores
from palmette.search.growth import Growth
from palmette.settings import Aggregate
from palmette.tree import Node, Tree


def leading_leaf(growth: Growth, aggregate: Aggregate) -> int | None:
    """Return the leaf with the best path score of those that go on or have finished; ties go to the older one."""
    leaves = [*growth.grants, *(node.id for node in growth.finished())]
    if not leaves:
        return None
    return max(leaves, key=lambda leaf: (aggregate_scores(growth.tree.scores(leaf), aggregate), -leaf))


class LeadingBranch:
    """The reasoning that was sent so far; what is sent cannot be taken back."""

    def __init__(self) -> None:
        self._path: list[int] = []

    def follow(self, tree: Tree, leaf: int) -> str:
        """Return what is to be sent next so that the reasoning ends with the path to `leaf`.

        Where another branch has taken the lead, a line says from which step on.
        """
        path = [node.id for node in tree.steps(leaf)]
        shared = 0
        while shared < min(len(path), len(self._path)) and path[shared] == self._path[shared]:
            shared += 1
        text = "".join(tree.nodes[node].text for node in path[shared:])
        if shared < len(self._path):
            if shared == len(path):
                return ""  # The new leader is a part of what was sent.
            text = f"\n[another branch leads, from step {shared + 1}]\n{text}"
        self._path = path
        return text


class StoppedText:
    """A text that is sent as it grows and ends before the first of `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._text = ""
        self._sent = 0

    def add(self, text: str) -> str:
        """Return what of the text can be sent now: nothing that may become a stop."""
        self._text += text
        end = len(before_stop(self._text, self._stops))
        if end == len(self._text):
            end -= max((_overlap(self._text, stop) for stop in self._stops), default=0)
        ready, self._sent = self._text[self._sent : end], max(self._sent, end)
        return ready


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first stop in it, all of it if there is none."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are the beginning of a stop."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def branch_of(tree: Tree, node: Node) -> int:
    """Return the number of the branch that a node of plain text belongs to: the place of its first step."""
    first = node.id
    while tree.nodes[first].parent:
        first = tree.nodes[first].parent or 0
    return first - 1
