"""Which rows are in which update: shuffled passes, cut into updates of about one size, a pure function of a seed."""

import hashlib
import math
import random
from collections.abc import Sequence


def updates_of(
    tokens: Sequence[int], keys: Sequence[bytes], *, batch_tokens: int, epochs: int, seed: int
) -> list[list[int]]:
    """Return the rows of each update, given the tokens of each row. Every row is in one update of each epoch.

    Prompts come in random order; rows with the same prompt, which is the key, come one after the other in random order,
    so that the prompt is computed once for those of an update.

    An epoch has as many updates as `batch_tokens` tokens each would need, all of about one size: without a small one at
    its end, which would count as much as the others. A row is never cut, so an update may be larger by part of a row.
    """
    total = sum(tokens)
    count = max(1, math.ceil(total / batch_tokens))
    updates: list[list[int]] = []
    for epoch in range(epochs):
        order = _shuffled(keys, random.Random(f"{seed} {epoch}"))
        cut: list[list[int]] = [[] for _ in range(count)]
        begin = 0
        for row in order:
            # The update in which the middle of the row lies, doubled to stay with whole numbers.
            cut[min(count - 1, (2 * begin + tokens[row]) * count // (2 * total))].append(row)
            begin += tokens[row]
        updates += [rows for rows in cut if rows]
    return updates


def _shuffled(keys: Sequence[bytes], generator: random.Random) -> list[int]:
    """Return the places of all keys in random order, those of one key together."""
    order = list(range(len(keys)))
    generator.shuffle(order)
    together: dict[bytes, list[int]] = {}
    for place in order:
        together.setdefault(keys[place], []).append(place)
    return [place for places in together.values() for place in places]


def held_out(keys: Sequence[bytes], share: float) -> tuple[list[int], list[int]]:
    """Return the places of rows to train on and of rows to test with: about this share, one or more if it is not 0.

    Rows with the same key are on the same side. Which ones are held out depends on the keys alone, not on their order.
    All rows are trained on if they have only one key.
    """
    distinct = sorted(set(keys), key=lambda key: hashlib.sha256(b"test " + key).digest())
    count = min(len(distinct) - 1, max(1, round(share * len(distinct)))) if share else 0
    tested = set(distinct[:count])
    training = [place for place, key in enumerate(keys) if key not in tested]
    return training, [place for place, key in enumerate(keys) if key in tested]
