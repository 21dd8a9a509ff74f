"""Continuous batching of many steps: one tick runs the model once and samples a token for every running lane.

Shapes: R rows, P pieces, V vocabulary.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from palmette.engine.cuts import Sampling
from palmette.engine.limits import DRAWN_LOGITS
from palmette.engine.sampler import Streams, draw
from palmette.engine.threads import as_many_as_ever
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel, check_finite
from palmette.memory.guard import RunPieces, run_whole

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


class Engine(Generic[Ending]):
    """Decodes rows in up to `max_lanes` lanes at a time; waiting rows take the places of lanes that have ended.

    Rows can be added at any time; they are decoded tick by tick. `ended` returns the ending of a row, None for a row
    that goes on; it is called after each token, once for all rows with the same prefix, tokens, limit and rules. On the
    CPU in float32 a row gets the same tokens whatever is batched with it, and whether or not it was evicted.
    """

    def __init__(
        self, model: TreeModel, sampling: Sampling, *, max_lanes: int, ended: Callable[[Row[Ending]], Ending | None]
    ) -> None:
        self._model = model
        self._sampling = sampling
        self._max_lanes = max_lanes
        self._ended = ended
        self._waiting: deque[Row[Ending]] = deque()
        self._lanes: Lanes[Ending] = {}
        self._cache_is_full = False
        """The KV cache has no room for one more lane: admit none until one has ended."""
        self.on_tokens: Callable[[int], None] | None = None
        """Called after each tick with the number of tokens sampled in it, for progress displays; None for no call."""

    def add(self, rows: Sequence[Row[Ending]]) -> None:
        """Decode these rows from the next tick on, after those that were added before."""
        self._waiting.extend(rows)

    def cancel(self, rows: Sequence[Row[Ending]]) -> None:
        """Stop decoding these rows. Their cache nodes stay as they are: the caller drops them."""
        gone = {id(row) for row in rows}
        self._waiting = deque(row for row in self._waiting if id(row) not in gone)
        kept = {tip: [row for row in lane if id(row) not in gone] for tip, lane in self._lanes.items()}
        self._lanes = {tip: lane for tip, lane in kept.items() if lane}
        self._cache_is_full = False

    def tick(self, run_pieces: RunPieces = run_whole) -> list[Row[Ending]]:
        """Run the model once on the running lanes and sample a token for each of their rows; return the ended rows.

        The rows are worked on in the pieces that `run_pieces` makes of them. A tick that fails in there has changed no
        row and can be repeated. Without rows it does nothing.
        """
        self._admit()
        tips = list(self._lanes)[: self._max_lanes]
        if not tips:
            return []
        running = [row for tip in tips for row in self._lanes[tip]]
        with self._model.threads():
            found = [drawn for part in run_pieces(running, self._sample, group=_tip) for drawn in part]
        # A lane that was split, of which one piece still computed the prefix, is sampled from again in the next tick.
        rows_of = Counter(map(_tip, (row for row, _, _ in found)))
        sampled = [drawn for drawn in found if rows_of[drawn[0].tip()] == len(self._lanes[drawn[0].tip()])]
        for row, token, logprob in sampled:
            row.tokens.append(token)
            row.logprobs.append(logprob)
        lanes_before = len(self._lanes)
        self._fork({row.tip() for row, _, _ in sampled})
        ended = self._take_ended([row for row, _, _ in sampled])
        self._cache_is_full = self._cache_is_full and len(self._lanes) >= lanes_before
        if self.on_tokens is not None:
            self.on_tokens(len(sampled))
        return ended

    def _admit(self) -> None:
        """Move waiting rows to lanes, in order, as long as there is a place for the next one."""
        while self._waiting:
            tip = self._waiting[0].tip()
            if tip not in self._lanes and (len(self._lanes) >= self._max_lanes or self._cache_is_full):
                return
            self._lanes.setdefault(tip, []).append(self._waiting.popleft())

    @torch.inference_mode()
    def _sample(self, rows: Sequence[Row[Ending]]) -> list[tuple[Row[Ending], int, float]]:
        """Run the model on the lanes of these rows; return a token and its log-probability for each row that has one.

        Changes no row. Rows of lanes that do not fit the KV cache, or whose prefill goes on, have none.
        """
        tips = list(dict.fromkeys(map(_tip, rows)))
        pieces, count = self._model.fit(tips, tips)
        self._cache_is_full = self._cache_is_full or count < len(tips)
        logits_PV = self._model.run(list(pieces.values()))
        index_of = {node: index for index, node in enumerate(pieces) if pieces[node].last == len(node.tokens)}
        ready = {tip for tip in tips[:count] if tip in index_of}
        rows = [row for row in rows if row.tip() in ready]
        indices = [index_of[row.tip()] for row in rows]
        chunk = max(1, DRAWN_LOGITS // logits_PV.shape[1])
        sampled: list[tuple[Row[Ending], int, float]] = []
        for start in range(0, len(rows), chunk):
            sampled += self._draw(rows[start : start + chunk], _rows(logits_PV, indices[start : start + chunk]))
        return sampled

    def _fork(self, ready: set[CacheNode]) -> None:
        """Append the sampled tokens of the ready lanes to the cache.

        A lane whose rows sampled different tokens is forked, one lane for each token.
        """
        cache = self._model.cache
        after: Lanes[Ending] = {}
        for tip, rows in self._lanes.items():
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
                for row in group:
                    row.node = node
                after[node] = group
        self._lanes = after

    def _take_ended(self, sampled: Sequence[Row[Ending]]) -> list[Row[Ending]]:
        """Set the ending of each row that has one, take it out of its lane; return these rows in the order given."""
        for tip in dict.fromkeys(row.tip() for row in sampled):
            endings: dict[tuple[int, Hashable], Ending | None] = {}
            for row in self._lanes[tip]:
                if (row.limit, row.rules) not in endings:
                    endings[row.limit, row.rules] = self._ended(row)
                row.ending = endings[row.limit, row.rules]
            unfinished = [row for row in self._lanes[tip] if row.ending is None]
            if unfinished:
                self._lanes[tip] = unfinished
            else:
                del self._lanes[tip]
        return [row for row in sampled if row.ending is not None]

    def _draw(self, rows: Sequence[Row[Ending]], logits_RV: torch.Tensor) -> list[tuple[Row[Ending], int, float]]:
        """Return the next token of every row and its log-probability."""
        streams = Streams([row.seed for row in rows], [len(row.tokens) for row in rows])
        drawn = draw(logits_RV, streams, self._sampling)
        check_finite(drawn.logprobs_R, "the policy's logits")
        tokens, logprobs = drawn.tokens_R.tolist(), drawn.logprobs_R.tolist()
        logits_alone: dict[CacheNode, torch.Tensor] = {}
        for index in torch.nonzero(drawn.narrow_R)[:, 0].tolist():
            # A narrow draw depends on rounding, and rounding on the batch and the number of threads: sample again from
            # logits of this row alone, always with the same number.
            row = rows[index]
            with as_many_as_ever():
                if row.tip() not in logits_alone:
                    logits_alone[row.tip()] = self._model.run_alone(row.tip().path_tokens())
                redrawn = draw(logits_alone[row.tip()], Streams([row.seed], [len(row.tokens)]), self._sampling)
            tokens[index], logprobs[index] = int(redrawn.tokens_R), float(redrawn.logprobs_R)
        return list(zip(rows, tokens, logprobs, strict=True))


def _tip(row: Row[Ending]) -> CacheNode:
    return row.tip()


def _rows(logits_PV: torch.Tensor, indices: list[int]) -> torch.Tensor:
    """Return the logits at these indices, as a view if the indices are consecutive."""
    first, last = indices[0], indices[-1] + 1
    return logits_PV[first:last] if indices == list(range(first, last)) else logits_PV[torch.tensor(indices)]
