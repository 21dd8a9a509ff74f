"""Scores steps on a tree-shaped KV cache: computes only new tokens, and a score does not depend on the batch."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.backend import Message
from palmette.backends.local import context_tokens
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_holder import TreeHolder
from palmette.engine.tree_model import TreeModel
from palmette.memory.guard import RunPieces, run_whole
from palmette.score import values
from palmette.score.rows.row import ChatRows, PromptKey, Row, Rows, Tokens, prompt_key
from palmette.score.scorer import Candidate
from palmette.zoo.foreign import as_backend_error

NARROW = 1e-4
"""An output this close to a rounding border (midway between two multiples) is computed again alone; 1 in 80 is.

Not those of models in narrower types: their outputs depend on the batch by more than this, and are themselves multiples
of 1/128 from 1 on, so that every other one of them lies on a border: that took a third of a search's time.
"""

_Scored = dict[tuple[str, ...], tuple[Tokens, CacheNode]]
"""Cached tokens and cache node of each scored path of one question, by its steps; no steps for the prompt itself."""


class TreeScorer(TreeHolder, ABC):
    """Scores up to `batch_rows` candidates in one forward pass, with a tree-shaped KV cache.

    Paths of a question that one call scored stay cached until the next call for that question, or until it is
    forgotten: a candidate that extends one of them is computed from its end on. Questions are told apart by their
    messages. A candidate longer than the model's context scores 0.

    `rows` tells how candidates become tokens: as chat and plain text where it is None.

    A subclass turns model outputs into one number for each row (`_values`) and that number into a score (`_score`).
    """

    omitted_tokens = 0
    """How many tokens at the end of a row are left out of its cache node."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_rows: int,
        kv_bytes: int | None = None,
        rows: Rows | None = None,
    ) -> None:
        self._name = f"the reward model, a {model.config.model_type}, cannot score"
        self._rows = rows or ChatRows(tokenizer)
        self._batch_rows = batch_rows
        self._limit = context_tokens(model)
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self.tree = TreeModel(model, budget_bytes=kv_bytes)
        with as_backend_error(self._name):
            self.tree.check()
        self._scored: dict[PromptKey, _Scored] = {}

    def forget(self, messages: Sequence[Message]) -> None:
        """Free the cached paths of a question; see `KeepsPaths`."""
        key = prompt_key(messages)
        self._rows.prompts.pop(key, None)
        self._drop_unless_kept(_nodes(self._scored.pop(key, {})))

    def check_prompt(self, messages: Sequence[Message]) -> None:
        """Raise ConfigError for messages that the reward model cannot be given; see `ReadsPrompts`."""
        self._rows.check_prompt(messages)

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the score of the last step of each candidate, in order. Raises BackendError if the model fails."""
        return self.score_in_pieces(candidates, run_whole)

    def score_in_pieces(self, candidates: Sequence[Candidate], run_pieces: RunPieces) -> list[float]:
        """Return the same scores as `score`; the model runs on pieces of the rows inside `run_pieces`."""
        with as_backend_error(self._name):
            self.tree.look_at_weights()
            rows = self._encode(candidates)
            nodes = self._place(candidates, rows)
        try:
            parts = run_pieces(list(nodes), lambda piece: self._compute({row: nodes[row] for row in piece}))
        finally:
            self._drop_unless_kept(nodes.values())
        found = {row: value for part in parts for row, value in part.items()}
        return [0.0 if row is None else self._score(values.on_grid(found[row])) for row in rows]

    @torch.inference_mode()
    def _compute(self, nodes: Mapping[Row, CacheNode]) -> dict[Row, float]:
        """Return `_values` of these rows; in float32 one too close to a rounding border is computed again alone."""
        new = [node for node in nodes.values() if node.computed < len(node.tokens)]
        try:
            with as_backend_error(self._name):
                with self.tree.threads():
                    found = self._values(nodes)
                for row, value in found.items():
                    if not self.tree.is_rounded and _is_narrow(value):
                        found[row] = self._value_alone(row, nodes[row])
        except BaseException:
            # The outputs at their tokens are lost with this call: empty the nodes, so that a retry computes them again.
            for node in new:
                self.tree.cache.empty(node)
            raise
        return found

    @abstractmethod
    def _values(self, nodes: Mapping[Row, CacheNode]) -> dict[Row, float]:
        """Return one number for each row. The tokens of a row are in its node and the ancestors of the node."""

    @abstractmethod
    def _value_alone(self, row: Row, node: CacheNode) -> float:
        """Return the same number for one row, computed without cache, padding and other rows."""

    @abstractmethod
    def _score(self, value: float) -> float:
        """Return the score in [0, 1] for a number of `_values`."""

    def _encode(self, candidates: Sequence[Candidate]) -> list[Row | None]:
        """Return the row of each candidate, None if it is longer than the model's context."""
        rows = self._rows.of(candidates)
        return [None if self._limit is not None and len(row.tokens) > self._limit else row for row in rows]

    def _place(self, candidates: Sequence[Candidate], rows: Sequence[Row | None]) -> dict[Row, CacheNode]:
        """Return a cache node for each distinct row, below the node of its parent step if that was scored last.

        Drops the other nodes of the questions asked about; what rows of this call build on stays cached.
        """
        cache, before = self.tree.cache, self._scored
        scored: dict[PromptKey, _Scored] = {}
        placed: dict[Row, CacheNode] = {}
        for candidate, row in zip(candidates, rows, strict=True):
            if row is None:
                continue
            key = prompt_key(candidate.messages)
            paths, known = scored.setdefault(key, {}), before.get(key, {})
            if () not in paths:
                whole = self._rows.prompts[key]
                prompt = whole[: len(whole) - self.omitted_tokens]
                paths[()] = known.get(()) or (prompt, cache.add_path(prompt))
            cached = row.tokens[: len(row.tokens) - self.omitted_tokens]
            if row not in placed:
                above, node = known.get(candidate.steps[:-1], paths[()])
                if len(above) + self.omitted_tokens > len(row.tokens) - row.step_tokens:
                    above, node = paths[()]  # The new step changes the tokens of the text before it.
                if cached[: len(above)] != above:
                    placed[row] = cache.add_path(cached)  # It changes even those of the prompt.
                else:
                    placed[row] = node if above == cached else cache.add(node, cached[len(above) :])
            if not candidate.finished:
                paths[candidate.steps] = cached, placed[row]
        self._scored = {**before, **scored}
        earlier = {node for key in scored for node in _nodes(before.get(key, {}))}
        self._drop_unless_kept(earlier - set(placed.values()))  # Those placed are dropped when they have been read.
        return placed

    def _drop_unless_kept(self, nodes: Iterable[CacheNode]) -> None:
        """Drop each node that is not the end of a kept path. Equal paths of two questions have the same node."""
        kept = {node for paths in self._scored.values() for node in _nodes(paths)}
        for node in set(nodes) - kept:
            self.tree.cache.drop(node)


def _is_narrow(value: float) -> bool:
    return abs(value / values.GRID % 1 - 0.5) * values.GRID < NARROW


def _nodes(paths: _Scored) -> set[CacheNode]:
    return {node for _, node in paths.values()}
