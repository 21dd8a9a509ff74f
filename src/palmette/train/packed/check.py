"""Tells whether a model computes on a trie what it computes on rows, by running it on a few tokens.

Shapes: T slots, L positions, D hidden size.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor

from palmette.train.model_parts import body_of, head_of
from palmette.train.packed.forward import TrieModel
from palmette.train.packed.passes import depth_first
from palmette.train.packed.sharing import Sharing
from palmette.train.packed.trie import build_trie
from palmette.train.samples import Sample

_checked: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def possible_sharing(model: Any, sharing: Sharing) -> tuple[Sharing, list[str]]:
    """Return how this model can share prefixes, and notes on what is not as it was asked for."""
    capped = attention_softcap(model) is not None and body_of(model).config._attn_implementation != "eager"  # type: ignore[union-attr]
    ignored = ["its softcap on attention scores is ignored: load it with attn_implementation='eager'"] if capped else []
    if sharing == "off":
        return "off", ignored
    refused = sharing_refused(model)
    if refused:
        name = model.config.model_type
        return "off", [
            f"shared prefixes are computed for each sample: cannot run a {name} on a trie, {refused}",
            *ignored,
        ]
    # On a trie the softcap is applied, on rows it would not be.
    return ("packed" if capped and sharing == "auto" else sharing), []


def sharing_refused(model: Any) -> str:
    """Return why prefixes cannot be shared with this model, an empty text if they can. A model is run once only.

    A model without values (fake tensors) cannot be run, and shares nothing.
    """
    if model not in _checked:
        _checked[model] = _refusal(model)
    return _checked[model]


def attention_softcap(model: Any) -> float | None:
    """Return the softcap on a model's attention scores, None if it has none.

    transformers' SDPA and flash attention ignore it; its eager attention and ours apply it.
    """
    return getattr(model.config.get_text_config(), "attn_logit_softcapping", None)


def _refusal(model: Any) -> str:
    weight = next(model.parameters())
    if isinstance(weight, FakeTensor) or weight.device.type == "meta":
        return "its weights have no values"
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return "" if _agrees(model) else "its outputs on a trie differ from those on rows"
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return str(error)
    except (TypeError, AttributeError, KeyError) as error:
        return f"its model code is not of the usual form ({error})"
    finally:
        model.train(was_training)


def _agrees(model: Any) -> bool:
    """Return whether a fork of two samples has the same hidden states in one pass, in two passes and on rows."""
    count = int(model.config.get_text_config().vocab_size)
    # Tokens from the middle of the vocabulary: outputs at control tokens can be out of the ordinary.
    tokens = [(count // 2 + index) % count for index in range(8)]
    forks = [Sample(tuple(tokens[:4]), tuple(tokens[4:6]), (0.0, 0.0))]
    forks.append(Sample(tuple(tokens[:3]), tuple(tokens[5:8]), (0.0,) * 3))
    trie = build_trie(forks)
    trie_model = TrieModel(model, head_of(model))
    slots = len(trie.tokens)
    with trie_model.attention():
        whole_TD, _ = trie_model.hidden(trie, 0, slots, [])
        first, *_, last = (step for step in depth_first(trie, slots - 1) if step.kind != "close")
        above = trie_model.forward(trie, first.first, first.last, [])
        below_TD, _ = trie_model.hidden(trie, last.first, last.last, [above])
    body: Any = body_of(model)
    config, own = body.config, body.config._attn_implementation
    if attention_softcap(model) is not None:
        config._attn_implementation = "eager"
    try:
        for index, path in zip(trie.order, trie.paths, strict=True):
            sample = forks[index]
            row_1L = torch.tensor([[*sample.prompt, *sample.response[:-1]]], device=whole_TD.device)
            plain_LD = body(input_ids=row_1L, use_cache=False).last_hidden_state[0]
            if _differ(whole_TD[list(path)], plain_LD):
                return False
            end = [slot for slot in path if last.first <= slot < last.last]
            if end and _differ(below_TD[[slot - last.first for slot in end]], plain_LD[-len(end) :]):
                return False
    finally:
        config._attn_implementation = own
    return True


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    tolerance = 2e-3 if one.dtype.itemsize > 2 else 0.1
    apart = (one - other).float().abs().max()
    return not bool(apart <= tolerance * other.float().abs().max())
