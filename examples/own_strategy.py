"""A strategy of your own, compared with a built-in one on the same questions.

A strategy says how many children each open leaf gets next. This one keeps the best `keep` leaves and shares the width
evenly between them. Prints accuracy, tokens and mean KV tokens for each strategy.
"""

from pydantic import Field

import palmette
from palmette.strategy import spread


class Keep(palmette.Strategy):
    """The best `keep` leaves share the width evenly."""

    class Settings(palmette.StrategySettings):
        """Each field is a key of `search.`, with its default, its limits and its help."""

        keep: int = Field(2, ge=1, description="leaves that go on")

    def allocate(self, frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
        """Return the children of each leaf; they sum to the width that is left."""
        best = [leaf for leaf, _ in frontier.ranked()[: self.settings.keep]]
        return spread(best, width)


task = palmette.load_task("ladder", questions=8)
keep_one = palmette.Searcher(policy="seedling", strategy=Keep, width=8, keep=1)
rebase = palmette.Searcher(policy="seedling", strategy="rebase", width=8)
for name, searcher in {"keep 1": keep_one, "rebase": rebase}.items():
    with searcher:
        results = searcher.search(task)
    right = sum(result.outcome == "correct" for result in results)
    tokens = sum(result.tokens for result in results) / len(results)
    kv = sum(result.mean_kv_tokens for result in results) / len(results)
    print(f"{name}: {right}/{len(results)} right, {tokens:.0f} tokens, KV {kv:.0f} tokens")
