"""Shepherd: one solution, and from each of its steps further completions to the end, which tell how good the step is.

As Math-Shepherd (Wang et al., 2023) labels steps for a process reward model, whose N is `completions`. Here the first
solution and its completions are one tree, so that a prefix is computed once. It searches for nothing: it labels.
"""

from pydantic import Field

from palmette.strategy import Children, Frontier, Strategy, StrategySettings, Use
from palmette.tree import Node, Tree


class ShepherdSettings(StrategySettings):
    """Settings of labels by rollouts."""

    completions: int = Field(
        8, ge=1, le=1000, description="completions from each step of the first solution; Math-Shepherd: 8"
    )


class Shepherd(Strategy):
    """Grows one solution and completions from each of its steps; prunes nothing, needs no scores.

    A tree needs a width of 1 + completions x steps. If the width is less, later steps get fewer completions, or none.
    """

    Settings = ShepherdSettings
    settings: ShepherdSettings

    @property
    def uses(self) -> frozenset[Use]:
        """Nothing: if there are scores, they only weigh the votes at the end."""
        return frozenset()

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Give every leaf one child; the last step of the first solution gets completions too, after its next step."""
        children = dict.fromkeys(frontier.leaves[:width], 1)
        last = first_solution(frontier.tree)
        if last and last[-1].id in children:
            children[last[-1].id] += min(self.settings.completions, width - sum(children.values()))
        return children


def first_solution(tree: Tree) -> list[Node]:
    """Return the steps of the first solution: the oldest child of the prompt, its oldest child, and so on."""
    steps: list[Node] = []
    for node in tree.nodes[1:]:  # A child's id is above its parent's, and that of the oldest child the lowest.
        if node.parent == (steps[-1].id if steps else 0):
            steps.append(node)
    return steps


plugin = Shepherd
