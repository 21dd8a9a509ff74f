"""A critic's head: one value for each hidden state.

Shapes: T tokens, D hidden size.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import torch
from torch import nn


class ValueHead(nn.Module):
    """A linear layer from hidden states to values, in float32 or wider, that begins with 0 for every state.

    It sits on the policy's body or on that of a model of its own. A first value of 0 makes the first advantages those
    of plain REINFORCE, and the first gradient of the body through the head 0.
    """

    def __init__(self, hidden_size: int, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1, dtype=torch.promote_types(dtype, torch.float32))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Return the values as T: the estimate before the token that each hidden state predicts."""
        values_T1: torch.Tensor = self.linear(hidden_TD.to(self.linear.weight.dtype))
        return values_T1[:, 0]
