"""Linear layers whose weights take fewer bytes than what flows through them.

Shapes: T tokens, I inputs, O outputs.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn


class NarrowLinear(nn.Linear, ABC):
    """A frozen linear layer. What comes in and goes out keeps its type; adapters sit on it as on any other."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.bias = plain.bias
        self.store(plain.weight.detach())

    @abstractmethod
    def store(self, weight_OI: torch.Tensor) -> None:
        """Take these weights in place of its own."""


class Bfloat16Linear(NarrowLinear):
    """Weights in 16 bits; inputs are rounded to as many, sums are kept in 32."""

    def store(self, weight_OI: torch.Tensor) -> None:
        """Round the weights."""
        self.weight = nn.Parameter(weight_OI.to(torch.bfloat16), requires_grad=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's output in the type of its input."""
        output = nn.functional.linear(input.to(torch.bfloat16), self.weight).to(input.dtype)
        return output if self.bias is None else output + self.bias


class Int8Linear(NarrowLinear):
    """Weights as whole numbers up to 127 with a scale for each output; inputs too, with a scale for each token.

    Products are summed exactly, so that a token's output hangs on no other token.
    """

    def store(self, weight_OI: torch.Tensor) -> None:
        """Round the weights."""
        scale_O = weight_OI.float().abs().amax(1).clamp(min=_TINY) / 127
        rounded = (weight_OI.float() / scale_O[:, None]).round_().to(torch.int8)
        self.weight = nn.Parameter(rounded, requires_grad=False)
        self.register_buffer("scale", scale_O)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's output in the type of its input."""
        input_TI = input.reshape(-1, self.in_features).float()
        scale_T1 = input_TI.abs().amax(1, keepdim=True).clamp_(min=_TINY).div_(127)
        sums_TO = torch._int_mm((input_TI / scale_T1).round_().to(torch.int8), self.weight.t())
        output_TO = sums_TO.float().mul_(scale_T1).mul_(self.scale)
        if self.bias is not None:
            output_TO += self.bias
        return output_TO.to(input.dtype).view(*input.shape[:-1], self.out_features)


_TINY = 1e-30
KINDS: dict[str, type[NarrowLinear]] = {"bfloat16": Bfloat16Linear, "int8": Int8Linear}


def narrow(model: nn.Module, kind: str) -> None:
    """Put narrow layers in the place of all linear ones, one after the other, so that no second copy is held."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, KINDS[kind](child))
