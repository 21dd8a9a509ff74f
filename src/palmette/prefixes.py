"""The distinct token prefixes of a tree's paths, as a radix tree: what a KV cache that shares prefixes stores once.

Steps that begin with the same tokens below the same prefix share these tokens, whichever nodes of the tree they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class KvCounts(NamedTuple):
    """KV tokens of some branches: `held` with every prefix once, `shared` those of them on two or more branches.

    `unshared` is what the same branches would hold with nothing shared: each one its whole path.
    """

    held: int
    shared: int
    unshared: int


class Prefixes:
    """A radix tree that grows. A place is a run of tokens below its parent; place 0 is the prompt.

    Every path that was added ends at the end of a place. The place of a path stays the same: if a later path parts
    from it in the middle of a place, the beginning moves to a new place above it.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._parents: list[int | None] = [None]
        self._tokens: list[Sequence[int]] = [()]
        self._below: list[dict[int, int]] = [{}]
        self._ends = [prompt_tokens]
        self._owners = [0]

    def add(self, above: int, tokens: Sequence[int], owner: int) -> int:
        """Add the path of place `above` with these tokens after it; return its place, an old one for an old path.

        New places remember the smallest `owner` whose path runs through them; owners have to be added in order.
        """
        current, start = above, 0
        while start < len(tokens):
            found = self._below[current].get(tokens[start])
            if found is None:
                return self._new(current, tokens[start:], owner)
            known = self._tokens[found]
            common = common_length(known, tokens, start)
            current = found if common == len(known) else self._split(found, common)
            start += common
        return current

    def length(self, place: int) -> int:
        """Return the number of tokens of the place itself, without those above it."""
        above = self._parents[place]
        return self._ends[place] - (0 if above is None else self._ends[above])

    def parents(self, places: Iterable[int]) -> dict[int, int | None]:
        """Return the parent of every place on these paths, None for the prompt; a parent comes before its children.

        Of places with one parent, the one with the oldest owner comes first.
        """
        found: set[int] = set()
        for place in places:
            current: int | None = place
            while current is not None and current not in found:
                found.add(current)
                current = self._parents[current]
        order = sorted(found, key=lambda place: (self._owners[place], self._ends[place]))
        return {place: self._parents[place] for place in order}

    def distinct(self, places: Iterable[int]) -> int:
        """Count the distinct prefixes of the paths to these places: the KV tokens with which all of them can go on."""
        return sum(map(self.length, self.parents(places)))

    def counts(self, branches: Mapping[int, int]) -> KvCounts:
        """Count the KV tokens of branches that have just written their last tokens: so many for each place.

        The KV of a branch's last token is not computed before the branch goes on, so that every branch has the KV of
        its path without the last token.
        """
        through = dict(branches)
        held = shared = unshared = 0
        for place in sorted(self.parents(branches), key=self._ends.__getitem__, reverse=True):
            above, uses = self._parents[place], through[place]
            if above is not None:
                through[above] = through.get(above, 0) + uses
            if not (length := self.length(place)):
                continue
            uses_of_last = uses - branches.get(place, 0)
            held += length - 1 + (uses_of_last > 0)
            shared += (length - 1) * (uses > 1) + (uses_of_last > 1)
            unshared += (length - 1) * uses + uses_of_last
        return KvCounts(held, shared, unshared)

    def _new(self, parent: int, tokens: Sequence[int], owner: int) -> int:
        place = len(self._parents)
        self._parents.append(parent)
        self._tokens.append(tokens)
        self._below.append({})
        self._ends.append(self._ends[parent] + len(tokens))
        self._owners.append(owner)
        self._below[parent][tokens[0]] = place
        return place

    def _split(self, place: int, count: int) -> int:
        """Move the first `count` tokens of a place to a new place above it; return the new place."""
        tokens, parent = self._tokens[place], self._parents[place]
        assert parent is not None
        above = self._new(parent, tokens[:count], self._owners[place])
        self._parents[place], self._tokens[place] = above, tokens[count:]
        self._below[above][tokens[count]] = place
        return above


def common_length(known: Sequence[int], tokens: Sequence[int], start: int = 0) -> int:
    """Return how many tokens from `start` on equal the first ones of `known`."""
    if tokens[start : start + len(known)] == known:
        return len(known)
    pairs = zip(known, tokens[start:], strict=False)
    shorter = min(len(known), len(tokens) - start)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), shorter)
