"""Tells before the first update whether a model computes what the learner assumes, by running it on a few tokens."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from palmette.errors import BackendError
from palmette.train.model_parts import body_of, head_of

_TOKENS = 8
_TRIES = 8
"""Forward passes that are compared: a layer that is left out one time in four differs in nine of ten such checks."""


def check_trainable(model: Any) -> None:
    """Raise BackendError if train mode is random, or if logits are not those of the head as `head_of` returns it.

    A sample that is computed again, in other pieces or with gradient checkpointing, has to give the same gradient.
    Models without values (fake tensors) are not run.
    """
    head_of(model)
    weight = next(model.parameters())
    if isinstance(weight, FakeTensor) or weight.device.type == "meta":
        return
    vocabulary = int(model.config.get_text_config().vocab_size)
    # Tokens from the middle of the vocabulary: outputs at control tokens can be out of the ordinary.
    tokens_1L = torch.arange(vocabulary // 2, vocabulary // 2 + _TOKENS, device=weight.device)[None] % vocabulary
    was_training = model.training
    devices = [weight.device] if weight.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            _refuse_noise(model, tokens_1L)
            _refuse_other_logits(model, tokens_1L)
    finally:
        model.train(was_training)


def _refuse_noise(model: Any, tokens_1L: torch.Tensor) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and module.p:  # An untrained adapter's dropout does not show yet.
            raise BackendError(
                f"cannot train a {model.config.model_type}: {name} has a dropout of {module.p}. Set it to 0"
            )
    model.train()

    def outputs() -> torch.Tensor:
        hidden: torch.Tensor = body_of(model)(input_ids=tokens_1L, use_cache=False).last_hidden_state
        return hidden.float()

    before = _generator_state(tokens_1L.device)
    first = outputs()
    if torch.equal(_generator_state(tokens_1L.device), before):
        return  # No random number was drawn.
    if any(_differ(outputs(), first, 1e-3) for _ in range(_TRIES)):
        named = ", ".join(_noisy_settings(model)) or "not named in its config"
        raise BackendError(
            f"cannot train a {model.config.model_type}: in train mode its outputs are random, by dropout or noise "
            f"({named}). Set it to 0 in config.json"
        )


def _generator_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _refuse_other_logits(model: Any, tokens_1L: torch.Tensor) -> None:
    model.eval()
    hidden_LD = body_of(model)(input_ids=tokens_1L, use_cache=False).last_hidden_state[0]
    logits_LV = head_of(model).logits(hidden_LD)
    own_LV = model(input_ids=tokens_1L, use_cache=False).logits[0].to(logits_LV.dtype)
    if own_LV.shape != logits_LV.shape or _differ(own_LV, logits_LV, 1e-3 if hidden_LD.dtype.itemsize > 2 else 2e-2):
        raise BackendError(
            f"cannot train a {model.config.model_type}: its logits are not those of its head alone, they are scaled or "
            "shifted afterwards"
        )


def _differ(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    return float((one - other).abs().max()) > tolerance * float(other.abs().max())


def _noisy_settings(model: Any) -> list[str]:
    """Return the settings of the model's config that are named like noise and are not 0."""
    values = model.config.get_text_config().to_dict()
    return [
        f"{name} {value}"
        for name, value in values.items()
        if isinstance(value, float) and value and any(word in name for word in ("drop", "jitter", "noise"))
    ]
