"""Best-of-N: `width` solutions side by side that never meet after the prompt."""

from palmette.strategy import Children, Frontier, Strategy, Use


class BestOfN(Strategy):
    """`width` solutions side by side that never meet after the prompt."""

    @property
    def uses(self) -> frozenset[Use]:
        """Nothing: scores only weigh the votes at the end."""
        return frozenset()

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Give the prompt `width` children, every later leaf one."""
        if frontier.leaves == (0,):
            return {0: width}
        return dict.fromkeys(frontier.leaves[:width], 1)


plugin = BestOfN
