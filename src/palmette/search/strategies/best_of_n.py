"""Best-of-N: samples `width` independent solutions from the prompt and prunes nothing."""

from palmette.strategy import Children, Frontier, Strategy, Use


class BestOfN(Strategy):
    """Samples `width` independent solutions from the prompt and prunes nothing."""

    @property
    def uses(self) -> frozenset[Use]:
        """Nothing: if there are scores, they only weigh the votes at the end."""
        return frozenset()

    @property
    def independent(self) -> bool:
        """True: no branch waits for another."""
        return True

    def allocate(self, frontier: Frontier, width: int, room: int | None) -> Children:
        """Give the prompt `width` children and every later leaf one child."""
        if frontier.leaves == (0,):
            return {0: width}
        return dict.fromkeys(frontier.leaves[:width], 1)


plugin = BestOfN
