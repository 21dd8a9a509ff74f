"""AdamW, or Muon for matrices: state in float32 with masters of narrow weights, or in bfloat16; here or on the host."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from palmette.errors import ConfigError, RunError
from palmette.train.update.bfloat16_adam import Bfloat16Adam, Rates


@dataclass(frozen=True)
class AdamSettings:
    """Settings of AdamW. Gradients are clipped to a norm of `max_norm` before its step, None for no clipping.

    A step moves a weight by about `learning_rate`, whatever its gradient: values above 1 raise ConfigError. With
    `state_dtype` bfloat16 the two moments take half the memory, and bfloat16 weights have no float32 masters: both are
    rounded at random, by generators made from `seed`. With `matrices` "muon" the matrices inside of layers are changed
    by Muon (Jordan et al. 2024), whose steps are orthogonal matrices, scaled to move a weight as much as AdamW does, so
    that one learning rate serves both; everything else by AdamW.
    """

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float | None = 1.0
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    matrices: Literal["adamw", "muon"] = "adamw"

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(f"learning_rate is {self.learning_rate}: give a number above 0 and up to 1, 1e-6 say")
        if self.state_dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"state_dtype is {self.state_dtype!r}: give float32 or bfloat16")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas are {self.betas}: give two numbers from 0 to below 1, (0.9, 0.999) say")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}: give 0 or more")
        if self.max_norm is not None and not self.max_norm > 0:  # A norm below 0 would turn every step around.
            raise ConfigError(f"max_norm is {self.max_norm}: give a number above 0, or None for no clipping")
        if not 0 < self.eps < math.inf:  # A gradient of 0, as of an unused token, gives a step of 0 / (0 + eps).
            raise ConfigError(f"eps is {self.eps}: give a number above 0, 1e-8 say")


class AdamW:
    """AdamW in float32 or wider: weights of a narrower dtype have a float32 master each, and are rounded from it.

    Without masters a step of 1e-6 is lost: between 0.5 and 1 bfloat16 has steps of 0.004. With `device`, masters and
    optimizer state are there, and gradients are copied to it. The results are the same with and without. All memory is
    allocated here, none in a step: if it is too small, no weight has changed yet. With a `state_dtype` of bfloat16 see
    `Bfloat16Adam`. `names` are those of the weights in `state_dict`, by default their numbers. `matrices` are the
    weights that Muon changes, which have to be float32 or wider and on the device of their state; its step takes
    memory for a few copies of one of them in bfloat16.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        settings: AdamSettings,
        *,
        device: torch.device | None = None,
        names: Sequence[str] | None = None,
        matrices: Iterable[nn.Parameter] = (),
    ) -> None:
        self._settings = settings
        self._names = [str(number) for number in range(len(weights))] if names is None else list(names)
        assert len(self._names) == len(weights)
        self._weights = list(weights)
        narrow = self._weights if settings.state_dtype == "bfloat16" else []
        self._narrow = Bfloat16Adam(narrow, seed=settings.seed, device=device)
        own = [weight for weight in weights if _is_wide(weight) and device in (None, weight.device) and not narrow]
        hidden = {id(weight) for weight in matrices}
        if hidden and (narrow or not hidden <= {id(weight) for weight in own}):
            raise ConfigError("Muon needs float32 weights, with float32 state beside them: take AdamW for others")
        by_adam = [weight for weight in own if id(weight) not in hidden]
        by_muon = [weight for weight in own if id(weight) in hidden]
        self._own = [_fused(by_adam, settings)] if by_adam else []
        self._own += [_muon(by_muon, settings)] if by_muon else []
        rest = [] if narrow else [weight for weight in weights if not any(weight is other for other in own)]
        self._masters: list[tuple[nn.Parameter, nn.Parameter, torch.optim.Optimizer]] = []
        self._known: dict[nn.Parameter, tuple[int, int]] = {}
        """Storage and version of each weight as its master last left it."""
        for weight in rest:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            master = nn.Parameter(weight.detach().to(device or weight.device, dtype, copy=True))
            self._masters.append((weight, master, _fused([master], settings)))
            self._known[weight] = _identity(weight)
        largest = max((master for _, master, _ in self._masters), key=lambda master: master.numel(), default=None)
        self._gradient = None if largest is None else torch.empty_like(largest).flatten()

    @torch.no_grad()
    def step(self, learning_rate: float | None = None) -> None:
        """Change every weight that has a gradient, at this learning rate, by default that of the settings.

        Gradients of weights with a master are dropped. A weight that was changed since, by a checkpoint that was
        loaded, is its master's new value.
        """
        rate = self._settings.learning_rate if learning_rate is None else learning_rate
        settings = self._settings
        self._narrow.step(Rates(rate, settings.betas, settings.eps, settings.weight_decay))
        for own in self._own:
            _step_at(own, rate)
        for weight, master, optimizer in self._masters:
            if weight.grad is not None:
                assert self._gradient is not None
                if _identity(weight) != self._known[weight]:
                    master.copy_(weight)
                master.grad = self._gradient[: weight.numel()].view_as(weight).copy_(weight.grad)
                weight.grad = None
                _step_at(optimizer, rate)
                master.grad = None
                weight.copy_(master)
                self._known[weight] = _identity(weight)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all state by names such as `NAME.exp_avg`, without copies: what `load_state_dict` needs to go on.

        It is that of torch's AdamW, `step`, `exp_avg` and `exp_avg_sq`, or of its Muon, `momentum_buffer`, and `master`
        for weights that have one.
        """
        return dict(self._state())

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all state. The weights have to be loaded before: a weight that changes later drops its master.

        Raises RunError, with nothing changed, if names, shapes or dtypes are not those of `state_dict`.
        """
        own = self.state_dict()
        for name in sorted(own.keys() ^ state.keys()):
            raise RunError(
                f"the optimizer state is of another model: {name} is {'missing' if name in own else 'not known here'}"
            )
        for name, tensor in own.items():
            given = state[name]
            if (given.shape, given.dtype) != (tensor.shape, tensor.dtype):
                raise RunError(
                    f"the optimizer state is of another model: {name} is {list(given.shape)} in {given.dtype}, not "
                    f"{list(tensor.shape)} in {tensor.dtype}"
                )
        for name, tensor in own.items():
            tensor.copy_(state[name])
        for weight in self._known:
            self._known[weight] = _identity(weight)

    def _state(self) -> Iterator[tuple[str, torch.Tensor]]:
        name_of: dict[torch.Tensor, str] = dict(zip(self._weights, self._names, strict=True))
        narrow = self._narrow
        for weight, *tensors in zip(narrow.weights, narrow.steps, narrow.averages, narrow.squares, strict=True):
            for key, tensor in zip(("step", "exp_avg", "exp_avg_sq"), tensors, strict=True):
                yield f"{name_of[weight]}.{key}", tensor
        for optimizer in self._own:
            for own, state in optimizer.state.items():
                for key, tensor in state.items():
                    yield f"{name_of[own]}.{key}", tensor
        for weight, master, optimizer in self._masters:
            yield f"{name_of[weight]}.master", master.detach()
            for key, tensor in optimizer.state[master].items():
                yield f"{name_of[weight]}.{key}", tensor


def _step_at(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


def _identity(weight: torch.Tensor) -> tuple[int, int]:
    return weight.untyped_storage()._cdata, weight._version  # Not data_ptr, which fake tensors do not have.


def _is_wide(weight: torch.Tensor) -> bool:
    return torch.promote_types(weight.dtype, torch.float32) == weight.dtype


def _fused(weights: list[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    """Return torch's fused AdamW, whose step makes no copies of weights or gradients, with its state allocated."""
    optimizer = torch.optim.AdamW(
        weights,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    for weight in weights:
        optimizer.state[weight] = {
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
            "exp_avg": torch.zeros_like(weight, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.preserve_format),
        }
    return optimizer


def _muon(weights: list[nn.Parameter], settings: AdamSettings) -> torch.optim.Optimizer:
    """Return torch's Muon with its state allocated, its steps as large as those of AdamW (Liu et al. 2025)."""
    optimizer = torch.optim.Muon(
        weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    for weight in weights:
        optimizer.state[weight] = {"momentum_buffer": torch.zeros_like(weight, memory_format=torch.preserve_format)}
    return optimizer
