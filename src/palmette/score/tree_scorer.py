"""Scoring on a tree of KV: only what is new since the last wave is computed, and neighbors do not change a score."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.chat import render
from palmette.backends.local import context_tokens
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel
from palmette.memory.guard import RunPieces, run_whole
from palmette.memory.oom import CacheFull
from palmette.score.scorer import Candidate
from palmette.zoo.foreign import as_backend_error

GRID = 1 / 64
"""Numbers are rounded to this, so that a score is the same whatever is scored beside it: a batch moves a logit by about
1e-5, and a strategy that breaks ties by score would see it. In probabilities a step of the grid is 1.6% at the most."""

NARROW = 1e-4
"""A number this close to the border between two grid points is computed again alone; one in eighty is."""

Tokens = tuple[int, ...]
_Asked = tuple[tuple[str, str], ...]


class _Known(dict[tuple[_Asked, tuple[str, ...]], tuple[Tokens, CacheNode]]):
    """Tokens and node of what was scored, by question and steps; no steps for the prompt."""


class TreeScorer(ABC):
    """Runs up to `batch_rows` candidates at a time on a tree cache.

    What one call has scored is kept until the next: a candidate that continues one of those is computed from there
    on. A solution longer than the model reads scores 0: it cannot be judged.
    """

    held_back = 0
    """Last tokens of a solution that its node does not hold."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_rows: int,
        kv_bytes: int | None = None,
    ) -> None:
        self._name = f"the reward model, a {model.config.model_type}, cannot score"
        self._tokenizer = tokenizer
        self._batch_rows = batch_rows
        self._limit = context_tokens(model)
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self.tree = TreeModel(model, budget_bytes=kv_bytes)
        with as_backend_error(self._name):
            self.tree.check()
        self._known = _Known()
        self._own: dict[Tokens, int] = {}
        """How many tokens of each row of the last call are its last step's."""

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self.tree.calls

    @property
    def weight_version(self) -> int:
        """The number of the weights that gave the last scores; see `TakesWeights`."""
        return self.tree.weight_version

    def use_adapter(self, folder: str | None) -> None:
        """Let the next scores come from the model with this adapter; see `TreeModel.use_adapter`."""
        self.tree.use_adapter(folder)

    def update_weights(self, source: Mapping[str, torch.Tensor] | str | Path) -> None:
        """Let the next scores come from these weights; see `TreeModel.update_weights`."""
        self.tree.update_weights(source)

    @property
    def cache_full(self) -> CacheFull | None:
        """The last time that the KV cache could not grow."""
        return self.tree.cache.pool.cache_full

    def give_up_cache(self) -> bool:
        """Give the memory of all KV back and go on with less of it; what was scored stays known."""
        return self.tree.give_up_cache()

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Score the last step of each candidate; see the contract."""
        return self.score_in_pieces(candidates, run_whole)

    def score_in_pieces(self, candidates: Sequence[Candidate], run_pieces: RunPieces) -> list[float]:
        """Score as `score` does, with the model's work done in pieces; see the contract."""
        with as_backend_error(self._name):
            self.tree.look_at_weights()
            rows = self._encode(candidates)
            nodes = self._placed(candidates, rows)
        try:
            parts = run_pieces(list(nodes), lambda piece: self._found({row: nodes[row] for row in piece}))
        finally:
            kept = {node for _, node in self._known.values()}
            for node in nodes.values():
                if node not in kept:
                    self.tree.cache.drop(node)
        found = {row: value for part in parts for row, value in part.items()}
        return [0.0 if row is None else self._score(round(found[row] / GRID) * GRID) for row in rows]

    @torch.inference_mode()
    def _found(self, nodes: Mapping[Tokens, CacheNode]) -> dict[Tokens, float]:
        new = [node for node in nodes.values() if node.computed < len(node.tokens)]
        try:
            with as_backend_error(self._name):
                found = self._values(nodes)
                for row, value in found.items():
                    if abs(value / GRID % 1 - 0.5) * GRID < NARROW:
                        found[row] = self._value_alone(row, nodes[row])
        except BaseException:
            # What came out at their tokens is lost with this call: when it is made again, they must be run again.
            for node in new:
                self.tree.cache.empty(node)
            raise
        return found

    @abstractmethod
    def _values(self, nodes: Mapping[Tokens, CacheNode]) -> dict[Tokens, float]:
        """Return a number for each row, whose tokens stand at its node."""

    @abstractmethod
    def _value_alone(self, row: Tokens, node: CacheNode) -> float:
        """Return the same number computed without cache, padding or neighbors."""

    @abstractmethod
    def _score(self, value: float) -> float:
        """Return the score in [0, 1] that a number stands for."""

    def _encode(self, candidates: Sequence[Candidate]) -> list[Tokens | None]:
        """Return each candidate's tokens, None where they are too many."""
        prompts = {_asked(candidate): candidate.messages for candidate in candidates}
        rendered = {asked: render(self._tokenizer, messages) for asked, messages in prompts.items()}
        rows: list[Tokens | None] = []
        for candidate in candidates:
            steps = self._text("".join(candidate.steps))
            ends = candidate.finished and self._tokenizer.eos_token_id is not None
            row = (*rendered[_asked(candidate)], *steps, *[self._tokenizer.eos_token_id] * ends)
            rows.append(None if self._limit is not None and len(row) > self._limit else row)
        return rows

    def _text(self, text: str) -> list[int]:
        # The policy's text is split as text: a control token that it spells out must not become one.
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _placed(self, candidates: Sequence[Candidate], rows: Sequence[Tokens | None]) -> dict[Tokens, CacheNode]:
        """Return a node for each distinct row, below what the last call left of it; forget what nothing stands on."""
        cache, before, known = self.tree.cache, self._known, _Known()
        placed: dict[Tokens, CacheNode] = {}
        self._own = {}
        for candidate, row in zip(candidates, rows, strict=True):
            if row is None:
                continue
            asked = _asked(candidate)
            if (asked, ()) not in known:
                prompt = render(self._tokenizer, candidate.messages)
                prompt = prompt[: len(prompt) - self.held_back]
                known[asked, ()] = before.get((asked, ())) or (prompt, cache.add_path(prompt))
            if row not in placed:
                above, node = before.get((asked, candidate.steps[:-1]), known[asked, ()])
                held = row[: len(row) - self.held_back]
                own = len(held) - len(above)
                if held[: len(above)] != above or node is known[asked, ()][1]:
                    # Not seen before, or the step has changed how the text before it is split.
                    above, node = known[asked, ()]
                    own = len(held) - len(above) - len(self._text("".join(candidate.steps[:-1])))
                self._own[row] = own
                placed[row] = node if above == held else cache.add(node, held[len(above) :])
            if not candidate.finished:
                known[asked, candidate.steps] = row[: len(row) - self.held_back], placed[row]
        kept = {node for _, node in known.values()}
        for _, node in before.values():
            if node not in kept:
                cache.drop(node)
        self._known = known
        return placed


def _asked(candidate: Candidate) -> _Asked:
    return tuple((message["role"], message["content"]) for message in candidate.messages)
