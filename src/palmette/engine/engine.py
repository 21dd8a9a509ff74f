"""Continuous decoding of many steps at once: one tick forwards, samples and appends for every lane in its place.

Shapes: R rows, P pieces, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from palmette.engine.cuts import Sampling
from palmette.engine.limits import DRAWN_LOGITS
from palmette.engine.sampler import Streams, draw
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel, check_finite

Ending = TypeVar("Ending")


@dataclass
class Row(Generic[Ending]):
    """One step while it is written below `parent`, with `limit` tokens at the most. `ending` is set when it is done.

    Rows with the same tokens and the same `rules` end alike. `node` holds its last tokens; other rows that have written
    the same so far hold it too.
    """

    parent: CacheNode
    seed: int
    limit: int
    rules: Hashable = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    node: CacheNode | None = None
    ending: Ending | None = None

    def tip(self) -> CacheNode:
        """Return the node whose last token the next one follows."""
        return self.node or self.parent


Lanes = dict[CacheNode, list[Row[Ending]]]
"""Rows by their tip. Rows of one lane have the same tokens above them: one forward pass serves them all, and they part
where their own streams draw different tokens."""


class Engine:
    """Writes rows in up to `places` lanes; a lane that ends leaves its place to the next one in the same tick.

    The same row gets the same tokens whatever runs beside it (CPU, float32), evicted or not.
    """

    def __init__(self, model: TreeModel, sampling: Sampling, *, places: int) -> None:
        self._model = model
        self._sampling = sampling
        self._places = places
        self.on_tokens: Callable[[int], None] | None = None
        """Called after each tick with the number of tokens that it wrote, for progress; None for nobody."""

    @torch.inference_mode()
    def write(self, rows: Sequence[Row[Ending]], ended: Callable[[Row[Ending]], Ending | None]) -> None:
        """Write every row until `ended` names its ending.

        It is asked after each token, once for all rows that have the same tokens, limit and rules.
        """
        waiting = deque(rows)
        lanes: Lanes[Ending] = {}
        crowded = False  # There is no room for one more lane before another has ended.
        while waiting or lanes:
            while waiting and (waiting[0].tip() in lanes or (len(lanes) < self._places and not crowded)):
                row = waiting.popleft()
                lanes.setdefault(row.tip(), []).append(row)
            tips = list(lanes)[: self._places]
            pieces, count = self._model.fit(tips, tips)
            crowded = crowded or count < len(tips)
            logits_PV = self._model.run(list(pieces.values()))
            place = {node: index for index, node in enumerate(pieces) if pieces[node].last == len(node.tokens)}
            ready = [tip for tip in tips[:count] if tip in place]
            drawing = [row for tip in ready for row in lanes[tip]]
            places = [place[row.tip()] for row in drawing]
            share = max(1, DRAWN_LOGITS // logits_PV.shape[1])
            for start in range(0, len(drawing), share):
                self._draw(drawing[start : start + share], _rows(logits_PV, places[start : start + share]))
            if self.on_tokens is not None:
                self.on_tokens(len(drawing))
            del logits_PV  # Not beside the next tick's: 96 MiB for 512 rows of SmolLM2's vocabulary.
            before = len(lanes)
            lanes = self._parted(lanes, set(ready), ended)
            crowded = crowded and len(lanes) >= before

    def _parted(
        self, lanes: "Lanes[Ending]", ready: set[CacheNode], ended: Callable[[Row[Ending]], Ending | None]
    ) -> "Lanes[Ending]":
        """Return the lanes after their draws: parted where rows drew different tokens, without rows that ended."""
        cache = self._model.cache
        after: Lanes[Ending] = {}
        for tip, rows in lanes.items():
            if tip not in ready:
                after[tip] = rows
                continue
            same: dict[int, list[Row[Ending]]] = {}
            for row in rows:
                same.setdefault(row.tokens[-1], []).append(row)
            for token, group in same.items():
                if group[0].node is None:
                    node = cache.add(tip, [token], len(group))
                else:
                    node = cache.extend(tip, token, len(group))
                for row in group:  # All, before anything else can fail: whoever cleans up drops what each row holds.
                    row.node = node
                endings: dict[tuple[int, Hashable], Ending | None] = {}
                for row in group:
                    if (row.limit, row.rules) not in endings:
                        endings[row.limit, row.rules] = ended(row)
                    row.ending = endings[row.limit, row.rules]
                left = [row for row in group if row.ending is None]
                if left:
                    after[node] = left
        return after

    def _draw(self, rows: Sequence[Row[Ending]], logits_RV: torch.Tensor) -> None:
        """Draw the next token of every row and record its log-probability."""
        streams = Streams([row.seed for row in rows], [len(row.tokens) for row in rows])
        drawn = draw(logits_RV, streams, self._sampling)
        check_finite(drawn.logprobs_R, "the policy's logits")
        tokens, logprobs = drawn.tokens_R.tolist(), drawn.logprobs_R.tolist()
        alone: dict[CacheNode, torch.Tensor] = {}
        for index in torch.nonzero(drawn.narrow_R)[:, 0].tolist():
            # Too close to call: rounding differs with the batch, so ask again in a batch that is always the same.
            row = rows[index]
            if row.tip() not in alone:
                alone[row.tip()] = self._model.run_alone(row.tip().path_tokens())
            own = draw(alone[row.tip()], Streams([row.seed], [len(row.tokens)]), self._sampling)
            tokens[index], logprobs[index] = int(own.tokens_R), float(own.logprobs_R)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)


def _rows(logits_PV: torch.Tensor, places: list[int]) -> torch.Tensor:
    """Return the logits at these places, without a copy where they stand side by side."""
    first, last = places[0], places[-1] + 1
    return logits_PV[first:last] if places == list(range(first, last)) else logits_PV[torch.tensor(places)]
