"""Continuous batching of many steps: one tick runs the model once and samples a token for every running lane.

Shapes: R rows, P pieces, V vocabulary.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch

from palmette.engine.cuts import Sampling
from palmette.engine.drafts import ORDERS, Acceptance, Guess, Index, worthwhile
from palmette.engine.limits import DRAFTED_TICK_TOKENS, DRAWN_LOGITS
from palmette.engine.pieces import Piece
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
    index: Index | None = field(default=None, repr=False)
    """What was written for the row's question, for drafts; set by the engine."""
    sampling: Sampling | None = None
    """How this row is sampled, None for the engine's own settings."""

    def tip(self) -> CacheNode:
        """Return the cache node whose last token the next token follows."""
        return self.node or self.parent


class Drawn(NamedTuple, Generic[Ending]):
    """What one tick has drawn for a row: a token, and one more for each drafted token that was drawn, in order."""

    row: Row[Ending]
    tokens: list[int]
    logprobs: list[float]


Lanes = dict[CacheNode, list[Row[Ending]]]
"""Rows by their tip. The rows of a lane have the same prefix, so one forward pass serves them all. A lane forks when
its rows, each with a random stream of its own, sample different tokens."""


class Engine(Generic[Ending]):
    """Decodes rows in up to `max_lanes` lanes at a time; waiting rows take the places of lanes that have ended.

    Rows can be added at any time; they are decoded tick by tick. `ended` returns the ending of a row, None for a row
    that goes on; it is called after each token, once for all rows with the same prefix, tokens, limit and rules. On the
    CPU in float32 a row gets the same tokens whatever is batched with it, and whether or not it was evicted.

    With `drafts`, tokens that may come next are computed along with a lane's last one, where that is cheap. The noise
    of a draw depends on nothing but the row's seed, the place and the token, so a row that draws a drafted token would
    have drawn it in the next tick too: the tokens are the same with drafts and without, in fewer ticks.
    """

    def __init__(
        self,
        model: TreeModel,
        sampling: Sampling,
        *,
        max_lanes: int,
        ended: Callable[[Row[Ending]], Ending | None],
        drafts: bool = True,
    ) -> None:
        self._model = model
        self._sampling = sampling
        self._max_lanes = max_lanes
        self._ended = ended
        self._drafts = drafts
        self._indexes: WeakKeyDictionary[CacheNode, Index] = WeakKeyDictionary()
        """What was written below each root. An index is forgotten with its root."""
        self.acceptance = Acceptance()
        """How often drafts came true. Forgotten when no root with an index is left: no search depends on another."""
        self.drafted_tokens = 0
        """Drafted tokens computed so far, in all searches. Never decides anything."""
        self.accepted_tokens = 0
        """Drafted tokens that a row of their lane has drawn so far, in all searches. Never decides anything."""
        self._drafted: dict[CacheNode, tuple[CacheNode, list[Guess]]] = {}
        """The drafts of the present tick by tip, with their cache nodes. Empty between ticks."""
        self._may_draft = False
        """Whether the present tick may draft: not after one of its pieces has failed."""
        self._waiting: Lanes[Ending] = {}
        """Rows that have no place yet, by tip, in the order in which their first rows came."""
        self._lanes: Lanes[Ending] = {}
        self._cache_is_full = False
        """The KV cache has no room for one more lane: admit none until one has ended."""
        self.on_tokens: Callable[[int], None] | None = None
        """Called after each tick with the number of tokens sampled in it, for progress displays; None for no call."""

    def add(self, rows: Sequence[Row[Ending]]) -> None:
        """Decode these rows from the next tick on, after those that were added before."""
        if self._drafts:
            if not self._indexes:
                self.acceptance = Acceptance()
            for row in rows:
                row.index = self._index(row.parent)
        for row in rows:
            self._waiting.setdefault(row.tip(), []).append(row)

    def cancel(self, rows: Sequence[Row[Ending]]) -> None:
        """Stop decoding these rows. Their cache nodes stay as they are: the caller drops them."""
        gone = {id(row) for row in rows}
        self._waiting = _without(self._waiting, gone)
        self._lanes = _without(self._lanes, gone)
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
        self._may_draft = self._drafts
        try:
            with self._model.threads():
                found = [drawn for part in run_pieces(running, self._sample, group=_tip) for drawn in part]
            lanes_before = len(self._lanes)
            self._judge_drafts(found)
            count = self._append(found)
        finally:
            for draft, _ in self._drafted.values():
                self._model.cache.empty(draft)
            self._drafted = {}
        self._cache_is_full = self._cache_is_full and len(self._lanes) >= lanes_before
        if self.on_tokens is not None:
            self.on_tokens(count)
        return [row for row in running if row.ending is not None]

    def _append(self, found: Sequence[Drawn[Ending]]) -> int:
        """Append the drawn tokens to their rows and to the cache, place by place; return how many were appended."""
        drafts = {tip: draft for tip, (draft, _) in self._drafted.items()}
        pending, place, count = list(found), 0, 0
        while pending:
            # A lane that was split, of which one piece got fewer tokens, is sampled from again in the next tick.
            rows_of = Counter(drawn.row.tip() for drawn in pending)
            pending = [each for each in pending if rows_of[each.row.tip()] == len(self._lanes[each.row.tip()])]
            tips = dict.fromkeys(each.row.tip() for each in pending)
            for tip in tips if place else ():
                self._model.cache.accept(drafts[tip], tip)
            before = [each.row.tip() for each in pending]
            for each in pending:
                each.row.tokens.append(each.tokens[place])
                each.row.logprobs.append(each.logprobs[place])
            self._fork(tips)
            for tip, each in zip(before, pending, strict=True):
                if len(each.tokens) > place + 1:
                    drafts[each.row.tip()] = drafts[tip]
            tips = dict.fromkeys(each.row.tip() for each in pending)
            self._learn(tips)
            self._take_ended(tips)
            count += len(pending)
            place += 1
            pending = [each for each in pending if each.row.ending is None and len(each.tokens) > place]
        return count

    def _admit(self) -> None:
        """Move waiting rows to lanes, in order, as long as there is a place for the next one.

        Rows with the same prefix start together, also those of equal steps: if one started later, it would write tokens
        that the others have written already into a node of its own, and they would be computed and stored twice.
        """
        while self._waiting:
            tip = next(iter(self._waiting))
            if tip not in self._lanes and (len(self._lanes) >= self._max_lanes or self._cache_is_full):
                return
            self._lanes.setdefault(tip, []).extend(self._waiting.pop(tip))

    @torch.inference_mode()
    def _sample(self, rows: Sequence[Row[Ending]]) -> list[Drawn[Ending]]:
        """Run the model on the lanes of these rows; return what was drawn for each row that has logits.

        Changes no row. Rows of lanes that do not fit the KV cache, or whose prefill goes on, have none.
        """
        tips = list(dict.fromkeys(map(_tip, rows)))
        pieces, count = self._model.fit(tips, tips)
        self._cache_is_full = self._cache_is_full or count < len(tips)
        ready = {tip: None for tip in tips[:count] if tip in pieces and pieces[tip].last == len(tip.tokens)}
        drafts = self._draft(list(ready), pieces)
        try:
            logits_PV = self._model.run([*pieces.values(), *drafts.values()], {piece.node for piece in drafts.values()})
            outputs = {tip: [index] for index, tip in enumerate(pieces)}
            below = len(pieces)
            for tip, piece in drafts.items():
                outputs[tip] += range(below, below + piece.last)
                below += piece.last
            drawn: list[Drawn[Ending]] = [Drawn(row, [], []) for row in rows if row.tip() in ready]
            pending, place = drawn, 0
            while pending:
                self._draw(pending, logits_PV, [outputs[each.row.tip()][place] for each in pending])
                pending = [
                    each
                    for each in pending
                    if each.row.tip() in drafts
                    and [each.tokens[-1]] == drafts[each.row.tip()].node.tokens[place : place + 1]
                ]
                place += 1
        except BaseException:
            # What is tried again, in smaller pieces where memory ran out, is tried without drafts.
            for tip in drafts:
                self._model.cache.empty(self._drafted.pop(tip)[0])
            self._may_draft = False
            raise
        return drawn

    def _draft(self, tips: Sequence[CacheNode], pieces: Mapping[CacheNode, Piece]) -> dict[CacheNode, Piece]:
        """Return a piece of drafted tokens, with slots, for each of these tips for which they are worth computing."""
        tokens = sum(piece.last - piece.first for piece in pieces.values())
        if not self._may_draft or tokens >= DRAFTED_TICK_TOKENS:
            return {}
        guesses = [self._guesses(tip, DRAFTED_TICK_TOKENS - tokens) for tip in tips]
        chances = [[self.acceptance.chance(guess.kind) for guess in own] for own in guesses]
        found: dict[CacheNode, Piece] = {}
        for tip, own, count in zip(tips, guesses, worthwhile(chances, tokens), strict=True):
            draft = self._model.cache.add_draft(tip, [guess.token for guess in own[:count]]) if count else None
            if draft is not None:
                self._drafted[tip] = draft, own[:count]
                found[tip] = Piece(draft, 0, count)
        return found

    def _guesses(self, tip: CacheNode, most: int) -> list[Guess]:
        """Return up to `most` tokens that the lane may write next, none past the limits of its rows."""
        rows = self._lanes[tip]
        if rows[0].index is None or tip in self._drafted:  # The lane was split, and its other piece has drafts.
            return []
        most = min(most, max(row.limit for row in rows) - len(rows[0].tokens) - 1)
        return rows[0].index.propose(tip.last_tokens(ORDERS[0]), most)

    def _judge_drafts(self, found: Sequence[Drawn[Ending]]) -> None:
        """Count which drafted tokens were drawn: those that any row of the lane has drawn, up to the first failure."""
        longest: dict[CacheNode, int] = {}
        for drawn in found:
            tip = drawn.row.tip()
            longest[tip] = max(longest.get(tip, 0), len(drawn.tokens) - 1)
        for tip, (_, guesses) in self._drafted.items():
            self.drafted_tokens += len(guesses)
            self.accepted_tokens += longest[tip]
            for place, guess in enumerate(guesses[: longest[tip] + 1]):
                self.acceptance.count(guess.kind, accepted=place < longest[tip])

    def _learn(self, tips: Iterable[CacheNode]) -> None:
        """Tell the indexes what was written last in the lanes at these tips."""
        for tip in tips:
            index = self._lanes[tip][0].index
            if index is not None:
                *context, token = tip.last_tokens(ORDERS[0] + 1)
                index.feed(context, [token])

    def _index(self, parent: CacheNode) -> Index:
        """Return the index of the parent's root; a new one knows the parent's path."""
        root = parent.root()
        if root not in self._indexes:
            self._indexes[root] = Index()
            self._indexes[root].feed([], parent.path_tokens())
        return self._indexes[root]

    def _fork(self, ready: Collection[CacheNode]) -> None:
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

    def _take_ended(self, tips: Iterable[CacheNode]) -> None:
        """Set the ending of each row of these lanes that has one, and take it out of its lane."""
        for tip in tips:
            endings: dict[tuple[int, Hashable], Ending | None] = {}
            for row in self._lanes[tip]:
                if (row.limit, row.rules) not in endings:
                    endings[row.limit, row.rules] = self._ended(row)
                row.ending = endings[row.limit, row.rules]
                if row.ending is not None and row.index is not None and len(row.tokens) < row.limit:
                    row.index.end(row.tokens[-1])
            unfinished = [row for row in self._lanes[tip] if row.ending is None]
            if unfinished:
                self._lanes[tip] = unfinished
            else:
                del self._lanes[tip]

    def _draw(self, drawn: Sequence[Drawn[Ending]], logits_PV: torch.Tensor, indices: Sequence[int]) -> None:
        """Draw the next token of each, from the logits at its index; append it with its log-probability."""
        chunk = max(1, DRAWN_LOGITS // logits_PV.shape[1])
        for sampling in dict.fromkeys(each.row.sampling for each in drawn):
            alike = [place for place, each in enumerate(drawn) if each.row.sampling == sampling]
            for start in range(0, len(alike), chunk):
                places = alike[start : start + chunk]
                logits_RV = _rows(logits_PV, [indices[place] for place in places])
                self._draw_together([drawn[place] for place in places], logits_RV, sampling or self._sampling)

    def _draw_together(self, drawn: Sequence[Drawn[Ending]], logits_RV: torch.Tensor, sampling: Sampling) -> None:
        seeds = [each.row.seed for each in drawn]
        places = [len(each.row.tokens) + len(each.tokens) for each in drawn]
        result = draw(logits_RV, Streams(seeds, places), sampling)
        check_finite(result.logprobs_R, "the policy's logits")
        tokens, logprobs = result.tokens_R.tolist(), result.logprobs_R.tolist()
        logits_alone: dict[CacheNode, torch.Tensor] = {}
        for index in torch.nonzero(result.narrow_R)[:, 0].tolist():
            # A narrow draw depends on rounding, and rounding on the batch and the number of threads: sample again from
            # logits of this row alone, always with the same number.
            tip = drawn[index].row.tip()
            with as_many_as_ever():
                if tip not in logits_alone:  # Rows of one lane have drawn the same drafted tokens so far.
                    logits_alone[tip] = self._model.run_alone([*tip.path_tokens(), *drawn[index].tokens])
                redrawn = draw(logits_alone[tip], Streams([seeds[index]], [places[index]]), sampling)
            tokens[index], logprobs[index] = int(redrawn.tokens_R), float(redrawn.logprobs_R)
        for each, token, logprob in zip(drawn, tokens, logprobs, strict=True):
            each.tokens.append(token)
            each.logprobs.append(logprob)


def _tip(row: Row[Ending]) -> CacheNode:
    return row.tip()


def _without(lanes: Lanes[Ending], gone: Collection[int]) -> Lanes[Ending]:
    """Return the lanes without the rows with these ids (of the objects), and without lanes that have none left."""
    kept = {tip: [row for row in lane if id(row) not in gone] for tip, lane in lanes.items()}
    return {tip: lane for tip, lane in kept.items() if lane}


def _rows(logits_PV: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return the logits at these indices, as a view if the indices are consecutive."""
    first, last = indices[0], indices[-1] + 1
    return logits_PV[first:last] if list(indices) == list(range(first, last)) else logits_PV[torch.tensor(indices)]
