"""Steps from a transformers model inside the process, by the engine with its tree of KV."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.backend import Expansion, Finish, Message, Step
from palmette.backends.chat import render
from palmette.engine.cuts import Sampling
from palmette.engine.engine import Engine, Row
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel
from palmette.errors import BackendError, ConfigError
from palmette.memory.oom import CacheFull
from palmette.settings import PolicySettings
from palmette.zoo.foreign import as_backend_error

_CONTEXT_TOKENS = 4  # Decoded before a step, so that a tokenizer that drops leading spaces keeps the step's own.

Ending = tuple[Finish, str]
"""How a step ended, with its text."""


class LocalBackend:
    """Grows up to `batch_rows` different steps at a time on a tree cache: what branches share is computed once.

    Nodes are known by question and id until they are released; an unknown one is computed from its prefix. With
    `kv_bytes` the cache never holds more than that, without it grows as needed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sampling: Sampling,
        batch_rows: int,
        kv_bytes: int | None = None,
    ) -> None:
        self._name = f"the policy, a {model.config.model_type}, cannot be decoded"
        self._tokenizer = tokenizer
        self._ends = _end_tokens(model, tokenizer)
        self._enders: dict[tuple[int, str], bool] = {}
        self.context_tokens = context_tokens(model)
        self.tree = TreeModel(model, budget_bytes=kv_bytes)
        with as_backend_error(self._name):
            self.tree.check()
        self._engine = Engine(self.tree, sampling, max_lanes=batch_rows)
        self._temperature = sampling.logprob_temperature
        self._nodes: dict[str, dict[int, CacheNode]] = {}
        self.device = str(self.tree.device)
        self.kv_bytes_per_token = self.tree.cache.pool.shape.token_bytes

    @property
    def on_tokens(self) -> Callable[[int], None] | None:
        """Who is told of tokens as they are written; see `TellsTokens`."""
        return self._engine.on_tokens

    @on_tokens.setter
    def on_tokens(self, listener: Callable[[int], None] | None) -> None:
        self._engine.on_tokens = listener

    @property
    def calls(self) -> int:
        """Forward passes made so far."""
        return self.tree.calls

    @property
    def weight_version(self) -> int:
        """The number of the weights that wrote the last steps; see `TakesWeights`."""
        return self.tree.weight_version

    def use_adapter(self, folder: str | None) -> None:
        """Let the next steps come from the model with this adapter; see `TreeModel.use_adapter`."""
        self.tree.use_adapter(folder)

    def update_weights(self, source: Mapping[str, torch.Tensor] | str | Path) -> None:
        """Let the next steps come from these weights; see `TreeModel.update_weights`."""
        self.tree.update_weights(source)

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens; see the contract."""
        return render(self._tokenizer, messages)

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Forget what is kept for these nodes; see the contract."""
        known = self._nodes.get(question, {})
        for node in nodes:
            if node in known:
                self.tree.cache.drop(known.pop(node))
        if not known:
            self._nodes.pop(question, None)

    @property
    def cache_full(self) -> CacheFull | None:
        """The last time that the KV cache could not grow."""
        return self.tree.cache.pool.cache_full

    def give_up_cache(self) -> bool:
        """Give the memory of all KV back and go on with less of it; nodes stay known, to be computed again."""
        return self.tree.give_up_cache()

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Grow one step for each expansion; see the contract. A call that fails can be made again."""
        for expansion in expansions:
            self._check_length(expansion)
        self.tree.look_at_weights()
        cache = self.tree.cache
        parents = {(wish.question, wish.parent, wish.prefix): wish for wish in expansions}
        nodes = {key: self._parent(wish) for key, wish in parents.items()}
        rows = [_Row(nodes[wish.question, wish.parent, wish.prefix], wish) for wish in expansions]
        try:
            with as_backend_error(self._name):
                self._engine.write(rows, self._ended)
        except BaseException:
            for row in rows:
                if row.node is not None:
                    cache.drop(row.node)
            raise
        for row in rows:
            own = row.expansion.node
            assert row.node is not None
            if own is None or own in self._nodes[row.expansion.question]:
                cache.drop(row.node)
            else:
                self._nodes[row.expansion.question][own] = row.node
        return [self._step(row) for row in rows]

    def _step(self, row: "_Row") -> Step:
        assert row.ending is not None
        finish, text = row.ending
        return Step(tuple(row.tokens), text, tuple(row.logprobs), finish, self._temperature)

    def _parent(self, expansion: Expansion) -> CacheNode:
        """Return the node to grow from, a new one where none is known under its id with these very tokens."""
        known = self._nodes.setdefault(expansion.question, {})
        node = known.get(expansion.parent)
        if node is None or tuple(node.path_tokens()) != expansion.prefix:
            if node is not None:
                self.tree.cache.drop(node)
            node = known[expansion.parent] = self.tree.cache.add_path(expansion.prefix)
        return node

    def _check_length(self, expansion: Expansion) -> None:
        needed = len(expansion.prefix) + expansion.max_tokens
        if self.context_tokens is not None and needed > self.context_tokens:
            raise ConfigError(
                f"question {expansion.question} may need {needed} tokens, the policy takes {self.context_tokens}: "
                f"lower search.total_tokens by {needed - self.context_tokens} or more"
            )

    def _ended(self, row: Row[Ending]) -> Ending | None:
        assert isinstance(row, _Row)
        tokens = row.tokens
        if tokens[-1] in self._ends:
            return "end", self._text(row)
        step_end, stop = row.expansion.step_end, row.expansion.stop
        if self._may_end(tokens[-1], step_end, stop):
            text = body = self._text(row)
            if stop is not None and stop in self._tail(row, stop) + text:
                return "end", text
            while (body := body.lstrip()).startswith(step_end):
                body = body[len(step_end) :]  # With nothing before it, a delimiter opens the step.
            if step_end in body:
                return "step", text
        return ("length", self._text(row)) if len(tokens) >= row.limit else None

    def _may_end(self, token: int, step_end: str, stop: str | None) -> bool:
        """Tell whether a delimiter can end in this token; decoding every row on every tick costs a lot."""
        # The stand-in is for a token that ends or begins inside a character.
        lasts = step_end[-1] + (stop or "")[-1:] + "\ufffd"
        if (token, lasts) not in self._enders:
            self._enders[token, lasts] = not set(lasts).isdisjoint(str(self._tokenizer.decode([token])))
        return self._enders[token, lasts]

    def _tail(self, row: "_Row", stop: str) -> str:
        """Return the end of the step above, in which a stop text can have begun; nothing below the prompt."""
        reach = len(stop) - 1
        return self._decode([*row.expansion.prefix[-reach:]])[-reach:] if reach and row.expansion.parent else ""

    def _text(self, row: "_Row") -> str:
        context = row.expansion.prefix[-_CONTEXT_TOKENS:]
        tokens = row.tokens
        if tokens[-1] in self._ends:
            tokens = tokens[:-1]
        # A character whose first bytes end the context belongs to this step: the step before shows a stand-in.
        above = self._decode([*context]).rstrip("\ufffd")
        return self._decode([*context, *tokens])[len(above) :]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class _Row(Row[Ending]):
    """A row that knows what it was asked for."""

    def __init__(self, parent: CacheNode, expansion: Expansion) -> None:
        super().__init__(parent, expansion.seed, expansion.max_tokens, (expansion.step_end, expansion.stop))
        self.expansion = expansion


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return every token that ends a solution: the generation config may name several, the tokenizer one."""
    generation = getattr(model, "generation_config", None)
    named = getattr(generation, "eos_token_id", None)
    listed = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    ends = [token for token in listed if isinstance(token, int)]
    if not ends:
        raise BackendError("the policy names no end token: its solutions would never finish")
    return frozenset(ends)


def context_tokens(model: PreTrainedModel) -> int | None:
    """Return the most tokens a model takes, None where its config names no limit.

    Models that turn positions another way once a text grows long (dynamic scaling, LongRoPE) stop where they would:
    rows of all lengths share a pass and what is cached has to stay true.
    """
    config = model.config.get_text_config()
    named = [getattr(config, "max_position_embeddings", None)]
    turning = getattr(config, "rope_parameters", None) or {}
    for one in (turning, *turning.values()):
        if isinstance(one, dict) and one.get("rope_type") in ("dynamic", "longrope"):
            named.append(one.get("original_max_position_embeddings"))
    limits = [limit for limit in named if isinstance(limit, int) and limit > 0]
    return min(limits) if limits else None


def load(settings: PolicySettings, kv_bytes: int | None = None) -> LocalBackend:
    """Load the policy into this process; with `kv_bytes` its cache never takes more."""
    from palmette.zoo.load import load_policy

    options = settings.model_dump(include={"adapter", "dtype", "quantize", "device"})
    model, tokenizer = load_policy(settings.model, **options)
    sampling = Sampling(settings.temperature, settings.top_p, settings.top_k, settings.min_p)
    return LocalBackend(model, tokenizer, sampling=sampling, batch_rows=settings.batch_rows, kv_bytes=kv_bytes)


plugin = load
