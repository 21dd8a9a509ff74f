"""Runs a transformers model on the tree cache: one tick is one forward pass over tokens of many nodes.

Shapes: P pieces, T tokens of a tick, V outputs per token (logits, or one score).
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from palmette.engine.attention import NAME, Tick, plan_attention, tree_attention, tree_mask
from palmette.engine.fast_modules import in_use, swaps
from palmette.engine.kv_pool import BLOCK_TOKENS, KvPool, KvShape, PoolFullError
from palmette.engine.limits import PREFILL_TOKENS
from palmette.engine.pieces import Piece, next_pieces, order_pieces
from palmette.engine.threads import as_many_as_free
from palmette.engine.tree_cache import CacheNode, TreeCache
from palmette.engine.weight_version import WeightVersion
from palmette.errors import BackendError, BudgetError
from palmette.processor import read_cpuinfo, slow_dtypes
from palmette.zoo.adapter import swap_adapter, undone_on_error
from palmette.zoo.overwrite import overwrite
from palmette.zoo.quantize import is_quantized

SMALL_HIDDEN_SIZE = 256
"""Up to this hidden size ticks run on one thread: they consist of operations that take less time than waking a second
one. Measured with a hidden size of 128: two threads, spinning while they wait, 1.00 times as fast with 16 rows and 1.04
with 256; with 576 1.3 to 1.5 times from 4 rows on."""

AttentionInterface.register(NAME, tree_attention)
AttentionMaskInterface.register(NAME, tree_mask)


class TreeModel:
    """A decoder-only model with a tree cache in place of its own KV cache. Its code is not changed.

    Its attention implementation and the code of some modules are switched during a forward pass only. Raises
    BackendError for a model without attention; `check` compares the outputs with those of the plain forward pass.
    """

    def __init__(self, model: PreTrainedModel, *, budget_bytes: int | None = None) -> None:
        self._model = model
        self.cache = TreeCache(KvPool(kv_shape(model), budget_bytes))
        self._takes_logits_to_keep = "CausalLM" in type(model).__name__ or hasattr(model, "lm_head")
        self.is_small = getattr(model.config.get_text_config(), "hidden_size", math.inf) <= SMALL_HIDDEN_SIZE
        """Whether a tick's time is that of its many small operations, not that of reading the weights."""
        self.is_rounded = model.dtype != torch.float32 or is_quantized(model)
        self.notices = _notices(model)
        """What is slow about the model on this machine, one line each."""
        self.calls = 0
        self._weights = WeightVersion(model)
        self._swaps = swaps(model)

    @property
    def weight_version(self) -> int:
        """The version of the weights with which everything in the KV cache was computed."""
        return self._weights.number

    def look_at_weights(self) -> None:
        """Empty the KV cache if the weights have changed since the last call, as far as `WeightVersion` notices it."""
        if self._weights.look(self._model):
            self.cache.empty_all()

    def weights_changed(self) -> None:
        """Empty the KV cache and increase `weight_version`. For changes that `WeightVersion` does not notice."""
        if not self._weights.look(self._model):
            self._weights.changed()
        self.cache.empty_all()

    def use_adapter(self, folder: str | None) -> None:
        """Replace the active PEFT adapter by the one in this folder, None for no adapter; see `swap_adapter`.

        Empties the KV cache. Raises ConfigError or BackendError, with the model as before, if the adapter cannot be
        loaded or the model fails `check` with it.
        """
        before = self._model, self._swaps
        try:
            with undone_on_error(self._model):
                self._model = swap_adapter(self._model, folder)
                self._swaps = swaps(self._model)
                self.check()
        except BaseException:
            self._model, self._swaps = before
            raise
        self.weights_changed()

    def update_weights(self, source: Mapping[str, torch.Tensor] | str | Path) -> None:
        """Overwrite the weights by a state dict or a folder of safetensors, empty the KV cache; see `overwrite`."""
        overwrite(self._model, source)
        self.weights_changed()

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs."""
        return self._model.device

    def fit(
        self, tips: Sequence[CacheNode], in_use: Sequence[CacheNode], prefill_tokens: int = PREFILL_TOKENS
    ) -> tuple[dict[CacheNode, Piece], int]:
        """Reserve KV slots for the next pieces of as many of the first tips as fit; return the pieces and that number.

        `in_use` has one node for each tip: the paths of those that fit are not evicted. Raises BudgetError if not one
        tip fits the KV budget, MemoryError if not one fits a cache that stopped growing for lack of memory.
        """
        count = len(tips)
        while True:
            pieces = next_pieces(tips[:count], prefill_tokens)
            try:
                self.cache.reserve([(node, piece.last) for node, piece in pieces.items()], in_use[:count])
            except PoolFullError:
                if count == 1:
                    raise self._too_small(in_use[0]) from None
                count = count * 3 // 4
            else:
                return pieces, count

    def free_cache(self) -> None:
        """Free the memory of the KV cache, which is allocated again when needed. No tick may be running."""
        self.cache.empty_all()
        self.cache.pool.free_memory()

    def give_up_cache(self) -> bool:
        """Free the KV cache and halve its limit; return False if it was too small to shrink. No tick may be running."""
        self.cache.empty_all()
        return self.cache.pool.shrink()

    def _too_small(self, node: CacheNode) -> Exception:
        pool = self.cache.pool
        needed = sum(-(-len(part.tokens) // BLOCK_TOKENS) for part in node.path()) * BLOCK_TOKENS
        if pool.is_frozen:
            return MemoryError(f"one path needs {needed} tokens of KV, memory ran out at {pool.limit_tokens} tokens")
        return BudgetError(
            f"one path has {needed} tokens of KV so far, the KV budget holds {pool.limit_tokens}: a token takes "
            f"{pool.shape.token_bytes} bytes, and the longest prompt with all its steps must fit"
        )

    def run(self, pieces: Sequence[Piece], every: Collection[CacheNode] = ()) -> torch.Tensor:
        """Compute all pieces in one forward pass; return the output at the last token of each, as PV in float32.

        Of the nodes in `every` it is the output at every token of the piece, in order: P counts them all.
        Every node must have its slots reserved and its ancestors computed or among the pieces, and at most one piece.
        Afterwards the tokens of the pieces count as computed.
        """
        return self._run(pieces, [last - first if node in every else 1 for node, first, last in pieces])

    def run_every(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Compute all pieces as `run` does; return the model's output at every token of each, in float32."""
        lengths = [last - first for _, first, last in pieces]
        logits_TV = self._run(pieces, lengths)
        return [logits_TV[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]

    def _run(self, pieces: Sequence[Piece], counts: Sequence[int]) -> torch.Tensor:
        """Return the outputs at the last `counts` tokens of each piece, in the order of the pieces."""
        self.calls += 1
        ordered, segments = order_pieces(pieces)
        tokens = np.array([token for node, first, last in ordered for token in node.tokens[first:last]])
        slots = np.concatenate([node.slots[first:last] for node, first, last in ordered])
        positions = np.array(
            [position for node, first, last in ordered for position in range(node.start + first, node.start + last)]
        )
        ends = np.cumsum([last - first for _, first, last in ordered]) - 1
        index_of = {piece.node: int(end) for piece, end in zip(ordered, ends, strict=True)}
        wanted = [
            index_of[piece.node] + 1 - count + place
            for piece, count in zip(pieces, counts, strict=True)
            for place in range(count)
        ]
        is_all = wanted == list(range(len(tokens)))
        wanted_P = slice(None) if is_all else torch.tensor(wanted, device=self.device)
        tick = Tick(
            self.cache.pool, torch.from_numpy(slots).to(self.device), plan_attention(segments, positions, self.device)
        )
        with self._attention(NAME), in_use(self._swaps):
            output = self._model(
                input_ids=torch.from_numpy(tokens)[None].to(self.device),
                position_ids=torch.from_numpy(positions)[None].to(self.device),
                # Without a mask of padding, positions that do not increase would be taken for packed sequences.
                attention_mask=torch.ones(1, len(tokens), dtype=torch.bool, device=self.device),
                use_cache=False,
                tick=tick,
                **({"logits_to_keep": wanted_P} if self._takes_logits_to_keep and not is_all else {}),
            )
        for node, _, last in pieces:
            node.computed = last
        logits: torch.Tensor = output.logits[0] if self._takes_logits_to_keep else output.logits[0, wanted_P]
        return logits.float()

    def run_alone(self, tokens: Sequence[int], count: int = 1) -> torch.Tensor:
        """Return the output at the last `count` tokens, computed without KV cache, padding or batch, in float32."""
        self.calls += 1
        options: dict[str, Any] = {"logits_to_keep": count} if self._takes_logits_to_keep else {}
        # SDPA ignores the softcap on attention scores with which Gemma 2 was trained; eager attention applies it.
        capped = getattr(self._model.config.get_text_config(), "attn_logit_softcapping", None)
        with self._attention("eager" if capped else self._model.config._attn_implementation):
            output = self._model(input_ids=torch.tensor([tokens], device=self.device), use_cache=False, **options)
        logits: torch.Tensor = output.logits[0, -count:].float()
        return logits

    def threads(self) -> AbstractContextManager[None]:
        """Return a block for ticks that uses fewer threads while others need the cores, one for a small model.

        Only on the CPU in float32: there a caller decides what is close by `run_alone`, outside of such a block.
        """
        if self.device.type != "cpu" or self.is_rounded:
            return nullcontext()
        return as_many_as_free(1 if self.is_small else None)

    @contextmanager
    def _attention(self, name: str | None) -> Iterator[None]:
        """Set the attention implementation inside the block, and restore it afterwards."""
        config = self._model.config
        before = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = before

    @torch.inference_mode()
    def check(self) -> None:
        """Raise BackendError unless two forks on the tree cache give the outputs of the plain forward pass."""
        # Tokens from the middle of the vocabulary: on control tokens float32 itself is off by 4e-3 (SmolLM2-135M).
        count = int(self._model.config.get_text_config().vocab_size)
        tokens = [(count // 2 + index) % count for index in range(6)]
        root = self.cache.add(None, tokens[:3])
        forks = [self.cache.add(root, tokens[3:4]), self.cache.add(root, tokens[4:])]
        pieces = [[Piece(root, 0, 3)], [Piece(forks[0], 0, 1), Piece(forks[1], 0, 2)]]
        calls = self.calls
        try:
            for tick in pieces:
                self.cache.reserve([(piece.node, piece.last) for piece in tick], forks)
                outputs = self.run(tick)
            plain = torch.cat([self.run_alone(fork.path_tokens()) for fork in forks])
            keyless = [layer for layer, keys in enumerate(self.cache.pool.keys) if not keys[:, root.slots].any()]
        except PoolFullError:
            raise self._too_small(forks[1]) from None
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise self._refused(str(error)) from error
        except (TypeError, AttributeError) as error:
            raise self._refused(f"its model code is not of the usual form ({error})") from error
        finally:
            self.calls = calls
            for node in (*forks, root):
                self.cache.drop(node)
        if keyless:
            raise self._refused(f"layer {keyless[0]} has no attention that uses transformers' AttentionInterface")
        tolerance = 0.1 if self.is_rounded else 2e-3
        if not torch.allclose(
            outputs, plain, rtol=0, atol=tolerance * float(plain.abs().nan_to_num().max()), equal_nan=True
        ):
            raise self._refused("its outputs differ from those of its plain forward pass")

    def _refused(self, reason: str) -> BackendError:
        return BackendError(f"cannot run a {self._model.config.model_type} on the tree cache: {reason}")


def _notices(model: PreTrainedModel) -> tuple[str, ...]:
    if model.device.type != "cpu":
        return ()
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in model.parameters()}
    return tuple(slow_dtypes(dtypes, read_cpuinfo()))


def check_finite(outputs: torch.Tensor, whose: str) -> None:
    """Raise BackendError if outputs contain NaN or infinity. `whose` names them, for example "the policy's logits"."""
    if not bool(torch.isfinite(outputs).all()):
        raise BackendError(f"{whose} are not finite: its weights are damaged, or its dtype has too small a range")


def kv_shape(model: PreTrainedModel) -> KvShape:
    """Return the shape of the model's KV cache. Raises BackendError if the model has no attention."""
    config = model.config.get_text_config()
    if not hasattr(config, "num_attention_heads"):
        raise BackendError(f"a {config.model_type} has no attention and so no KV cache, which a search needs")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return KvShape(int(config.num_hidden_layers), int(heads), int(width), model.dtype, model.device)
