"""Continuous batching of many steps: one tick runs the model once and samples a token for every running lane.

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
    """A step that is being decoded below `parent`, with at most `limit` tokens. `ending` is set when it is done.

    Rows with the same tokens, limit and `rules` end in the same way. `node` is the cache node of the row's last tokens;
    rows that have sampled the same tokens so far share it.
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
        """Return the cache node whose last token the next token follows."""
        return self.node or self.parent


Lanes = dict[CacheNode, list[Row[Ending]]]
"""Rows by their tip. The rows of a lane have the same prefix, so one forward pass serves them all. A lane forks when
its rows, each with a random stream of its own, sample different tokens."""


class Engine:
    """Decodes rows in up to `max_lanes` lanes at a time; waiting rows take the places of lanes that have ended.

    On the CPU in float32 a row gets the same tokens whatever is batched with it, and whether or not it was evicted.
    """

    def __init__(self, model: TreeModel, sampling: Sampling, *, max_lanes: int) -> None:
        self._model = model
        self._sampling = sampling
        self._max_lanes = max_lanes
        self.on_tokens: Callable[[int], None] | None = None
        """Called after each tick with the number of tokens sampled in it, for progress displays; None for no call."""

    @torch.inference_mode()
    def write(self, rows: Sequence[Row[Ending]], ended: Callable[[Row[Ending]], Ending | None]) -> None:
        """Decode every row until `ended` returns its ending, which is None for a row that goes on.

        `ended` is called after each token, once for all rows that have the same prefix, tokens, limit and rules.
        """
        waiting = deque(rows)
        lanes: Lanes[Ending] = {}
        cache_is_full = False  # The KV cache has no room for one more lane: admit none until one has ended.
        while waiting or lanes:
            while waiting and (waiting[0].tip() in lanes or (len(lanes) < self._max_lanes and not cache_is_full)):
                row = waiting.popleft()
                lanes.setdefault(row.tip(), []).append(row)
            tips = list(lanes)[: self._max_lanes]
            pieces, count = self._model.fit(tips, tips)
            cache_is_full = cache_is_full or count < len(tips)
            logits_PV = self._model.run(list(pieces.values()))
            index_of = {node: index for index, node in enumerate(pieces) if pieces[node].last == len(node.tokens)}
            ready = [tip for tip in tips[:count] if tip in index_of]
            ready_rows = [row for tip in ready for row in lanes[tip]]
            indices = [index_of[row.tip()] for row in ready_rows]
            chunk = max(1, DRAWN_LOGITS // logits_PV.shape[1])
            for start in range(0, len(ready_rows), chunk):
                self._draw(ready_rows[start : start + chunk], _rows(logits_PV, indices[start : start + chunk]))
            if self.on_tokens is not None:
                self.on_tokens(len(ready_rows))
            del logits_PV  # Before the next tick allocates its own: 96 MiB for 512 rows of SmolLM2's vocabulary.
            lanes_before = len(lanes)
            lanes = self._forked(lanes, set(ready), ended)
            cache_is_full = cache_is_full and len(lanes) >= lanes_before

    def _forked(
        self, lanes: "Lanes[Ending]", ready: set[CacheNode], ended: Callable[[Row[Ending]], Ending | None]
    ) -> "Lanes[Ending]":
        """Append the sampled tokens of the ready lanes to the cache; return the lanes of all rows that go on.

        A lane whose rows sampled different tokens is forked, one lane for each token.
        """
        cache = self._model.cache
        after: Lanes[Ending] = {}
        for tip, rows in lanes.items():
            if tip not in ready:
                after[tip] = rows
                continue
            by_token: dict[int, list[Row[Ending]]] = {}
            for row in rows:
                by_token.setdefault(row.tokens[-1], []).append(row)
            for token, group in by_token.items():
                if group[0].node is None:
                    node = cache.add(tip, [token], len(group))
                else:
                    node = cache.extend(tip, token, len(group))
                for row in group:  # For all rows before `ended` can fail: on an error the caller drops each row's node.
                    row.node = node
                endings: dict[tuple[int, Hashable], Ending | None] = {}
                for row in group:
                    if (row.limit, row.rules) not in endings:
                        endings[row.limit, row.rules] = ended(row)
                    row.ending = endings[row.limit, row.rules]
                unfinished = [row for row in group if row.ending is None]
                if unfinished:
                    after[node] = unfinished
        return after

    def _draw(self, rows: Sequence[Row[Ending]], logits_RV: torch.Tensor) -> None:
        """Sample the next token of every row; append it and its log-probability to the row."""
        streams = Streams([row.seed for row in rows], [len(row.tokens) for row in rows])
        drawn = draw(logits_RV, streams, self._sampling)
        check_finite(drawn.logprobs_R, "the policy's logits")
        tokens, logprobs = drawn.tokens_R.tolist(), drawn.logprobs_R.tolist()
        logits_alone: dict[CacheNode, torch.Tensor] = {}
        for index in torch.nonzero(drawn.narrow_R)[:, 0].tolist():
            # A narrow draw depends on rounding, and rounding on the batch: sample again from logits of this row alone.
            row = rows[index]
            if row.tip() not in logits_alone:
                logits_alone[row.tip()] = self._model.run_alone(row.tip().path_tokens())
            redrawn = draw(logits_alone[row.tip()], Streams([row.seed], [len(row.tokens)]), self._sampling)
            tokens[index], logprobs[index] = int(redrawn.tokens_R), float(redrawn.logprobs_R)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)


def _rows(logits_PV: torch.Tensor, indices: list[int]) -> torch.Tensor:
    """Return the logits at these indices, as a view if the indices are consecutive."""
    first, last = indices[0], indices[-1] + 1
    return logits_PV[first:last] if indices == list(range(first, last)) else logits_PV[torch.tensor(indices)]
