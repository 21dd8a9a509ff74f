"""Generates steps with a transformers model in this process, on the engine's tree cache."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from palmette.backends.backend import Expansion, Message, Step, check_length
from palmette.backends.blocking import expand_all
from palmette.backends.chat import encode_prompt, render, spell
from palmette.backends.step_text import Ending, StepText, end_tokens_of
from palmette.engine.cuts import Sampling
from palmette.engine.drafts import Acceptance
from palmette.engine.engine import Engine, Row
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_holder import TreeHolder
from palmette.engine.tree_model import TreeModel
from palmette.memory.guard import RunPieces, run_whole
from palmette.settings import PolicySettings
from palmette.zoo.foreign import as_backend_error


class LocalBackend(TreeHolder):
    """Decodes up to `batch_rows` different steps at a time on a tree cache: shared prefixes are computed once.

    The KV of a node is found by question and node id until the node is released; for any other parent the prefix is
    computed. With `kv_bytes` the KV cache has that fixed size, without it grows as needed. Without `drafts` every tick
    gives one token a step; the steps are the same. None drafts where that is faster: not with small models, whose ticks
    read few weights.
    """

    takes_sampling: Literal[True] = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sampling: Sampling,
        batch_rows: int,
        kv_bytes: int | None = None,
        drafts: bool | None = None,
    ) -> None:
        self._name = f"the policy, a {model.config.model_type}, cannot be decoded"
        self._tokenizer = tokenizer
        named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        self._text = StepText(tokenizer, end_tokens_of(named, tokenizer))
        self.context_tokens = context_tokens(model)
        self.tree = TreeModel(model, budget_bytes=kv_bytes)
        with as_backend_error(self._name):
            self.tree.check()
        drafts = not self.tree.is_small if drafts is None else drafts
        self._engine = Engine(self.tree, sampling, max_lanes=batch_rows, ended=self._ended, drafts=drafts)
        self._rows: list[_Row] = []
        """The steps in flight."""
        self._sampling = sampling
        self._is_interrupted = False
        self._nodes: dict[str, dict[int, CacheNode]] = {}
        self.device = str(self.tree.device)
        self.kv_bytes_per_token = self.tree.cache.pool.shape.token_bytes

    @property
    def on_tokens(self) -> Callable[[int], None] | None:
        """Callback for progress displays, called with the number of new tokens; see `TellsTokens`."""
        return self._engine.on_tokens

    @on_tokens.setter
    def on_tokens(self, callback: Callable[[int], None] | None) -> None:
        self._engine.on_tokens = callback

    @property
    def kv_tokens_held(self) -> int:
        """KV tokens that the cache holds now; see `TellsKv`."""
        return self.tree.cache.pool.taken_bytes // self.kv_bytes_per_token

    @property
    def acceptance(self) -> Acceptance:
        """How many drafted tokens were checked and accepted in the present search."""
        return self._engine.acceptance

    @property
    def draft_counts(self) -> tuple[int, int]:
        """Drafted tokens that were accepted, and all that were computed, in all searches so far."""
        return self._engine.accepted_tokens, self._engine.drafted_tokens

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of a prompt; see `Backend`."""
        return render(self._tokenizer, messages)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt without a template; see `Tokenizes`."""
        return encode_prompt(self._tokenizer, text)

    def spell(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token; see `Tokenizes`."""
        return spell(self._tokenizer, tokens)

    def interrupt(self) -> None:
        """Have `finished` return after the present tick; see `Interruptible`."""
        self._is_interrupted = True

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Free the KV of these nodes and give up steps in flight for them; see `Backend`."""
        gone = set(nodes)
        given_up = [row for row in self._rows if row.expansion.question == question and row.expansion.node in gone]
        if given_up:
            self._cancel(given_up)
        known = self._nodes.get(question, {})
        for node in nodes:
            if node in known:
                self.tree.cache.drop(known.pop(node))
        if not known:
            self._nodes.pop(question, None)

    def free_cache(self) -> None:
        """Free the memory of the KV cache between a rollout and an update; the next step allocates it again."""
        self.tree.free_cache()

    def start(self, expansions: Sequence[Expansion]) -> None:
        """Take these expansions; see `StartsSteps`.

        Raises ConfigError, with none of them taken, if a prefix and its step may be longer than the policy's context.
        """
        for expansion in expansions:
            check_length(expansion, self.context_tokens)
        parents = {(each.question, each.parent, each.prefix): each for each in expansions}
        nodes = {key: self._parent(expansion) for key, expansion in parents.items()}
        rows = [
            _Row(nodes[each.question, each.parent, each.prefix], each, self._sampling_of(each)) for each in expansions
        ]
        self._rows += rows
        self._engine.add(rows)

    def finished(self) -> list[tuple[Expansion, Step]]:
        """Tick until a step is done; see `StartsSteps`. A call that failed can be repeated."""
        return self.finished_in_pieces(run_whole)

    def finished_in_pieces(self, run_pieces: RunPieces) -> list[tuple[Expansion, Step]]:
        """Tick until a step is done, each tick in pieces of its lanes; see `FinishesInPieces`."""
        self.tree.look_at_weights()
        ended: list[Row[Ending]] = []
        with as_backend_error(self._name):
            while self._rows and not ended and not self._is_interrupted:
                ended = self._engine.tick(run_pieces)
        self._is_interrupted = False
        done = [row for row in ended if isinstance(row, _Row)]
        self._rows = [row for row in self._rows if row.ending is None]
        for row in done:
            child, known = row.expansion.node, self._nodes.setdefault(row.expansion.question, {})
            assert row.node is not None
            if child is None or child in known:
                self.tree.cache.drop(row.node)
            else:
                known[child] = row.node
        return [(row.expansion, self._step(row)) for row in done]

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Generate one step for each expansion; see `Expands`. A call that failed can be repeated."""
        try:
            return expand_all(self, expansions)
        except BaseException:
            self._cancel(self._rows)
            for expansion in expansions:
                if expansion.node is not None:
                    self.release(expansion.question, [expansion.node])
            raise

    def _cancel(self, rows: "Sequence[_Row]") -> None:
        """Give up these rows, with the KV that they have computed so far."""
        self._engine.cancel(rows)
        gone = {id(row) for row in rows}
        self._rows = [row for row in self._rows if id(row) not in gone]
        for row in rows:
            if row.node is not None:
                self.tree.cache.drop(row.node)

    def _step(self, row: "_Row") -> Step:
        assert row.ending is not None
        finish, text = row.ending
        temperature = (row.sampling or self._sampling).logprob_temperature
        return Step(tuple(row.tokens), text, tuple(row.logprobs), finish, temperature, row.cached_tokens)

    def _sampling_of(self, expansion: Expansion) -> Sampling | None:
        """Return how the step is sampled where the expansion tells, None as all others are."""
        if expansion.temperature is None and expansion.top_p is None:
            return None
        own = self._sampling
        temperature = own.temperature if expansion.temperature is None else expansion.temperature
        return replace(own, temperature=temperature, top_p=own.top_p if expansion.top_p is None else expansion.top_p)

    def _parent(self, expansion: Expansion) -> CacheNode:
        """Return the cache node of the parent; add one if none with this id has exactly the tokens of the prefix."""
        known = self._nodes.setdefault(expansion.question, {})
        node = known.get(expansion.parent)
        if node is None or tuple(node.path_tokens()) != expansion.prefix:
            if node is not None:
                self.tree.cache.drop(node)
            node = known[expansion.parent] = self.tree.cache.add_path(expansion.prefix)
        return node

    def _ended(self, row: Row[Ending]) -> Ending | None:
        """Return what ended the row and its text, None if it goes on."""
        assert isinstance(row, _Row)
        return self._text.ending(row.expansion, row.tokens)


class _Row(Row[Ending]):
    """A row with the expansion that it decodes."""

    def __init__(self, parent: CacheNode, expansion: Expansion, sampling: Sampling | None) -> None:
        rules = (expansion.step_end, expansion.stop)
        super().__init__(parent, expansion.seed, expansion.max_tokens, rules, sampling=sampling)
        self.expansion = expansion
        self.cached_tokens = sum(node.computed for node in parent.path())


def context_tokens(model: PreTrainedModel) -> int | None:
    """Return the most tokens that a model takes, None if its config names no limit; see `context_of`."""
    return context_of(model.config)


def context_of(model_config: PretrainedConfig) -> int | None:
    """Return the most tokens that a model of this config takes, None if it names no limit.

    RoPE variants that change the rotation of all positions for longer texts (dynamic scaling, LongRoPE) are limited to
    their original length: cached keys must stay valid, and one forward pass holds rows of all lengths. Llama 4 is
    limited to where its attention temperature begins to change: its code counts that by the index in a forward pass.
    """
    config = model_config.get_text_config()
    candidates = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        if isinstance(parameters, dict) and parameters.get("rope_type") in ("dynamic", "longrope"):
            candidates.append(parameters.get("original_max_position_embeddings"))
    if getattr(config, "attn_temperature_tuning", False):
        candidates.append(getattr(config, "floor_scale", None))
    limits = [limit for limit in candidates if isinstance(limit, int) and limit > 0]
    return min(limits) if limits else None


def load(settings: PolicySettings, kv_bytes: int | None = None) -> LocalBackend:
    """Load the policy into this process; `kv_bytes` is the fixed size of its KV cache, None to grow as needed."""
    from palmette.zoo.load import load_policy

    options = settings.model_dump(include={"adapter", "dtype", "quantize", "device"})
    model, tokenizer = load_policy(settings.model, **options)
    return make_backend(model, tokenizer, settings, kv_bytes)


def make_backend(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: PolicySettings, kv_bytes: int | None = None
) -> LocalBackend:
    """Return a backend of a loaded policy with the settings' sampling."""
    sampling = Sampling(settings.temperature, settings.top_p, settings.top_k, settings.min_p)
    return LocalBackend(
        model,
        tokenizer,
        sampling=sampling,
        batch_rows=settings.batch_rows,
        kv_bytes=kv_bytes,
        drafts=None if settings.drafts == "auto" else False,
    )


plugin = load
