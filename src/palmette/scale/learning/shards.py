"""Shards a policy over ranks by FSDP2: its layers one by one, then what is left of it.

Shapes: R rows, L positions, D hidden size, T response tokens that count.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from palmette.memory.offload import layers_of
from palmette.train.logprobs import token_logprobs
from palmette.train.model_parts import body_of, head_of
from palmette.train.update.batch import Rows


class PolicyScores(nn.Module):
    """A policy from tokens to what a loss needs of them: log-probabilities, entropies, values.

    FSDP2 gathers the weights of a module while its `forward` runs. The loss reads the weight of the head itself, so
    that reading has to be part of a `forward`: this one.
    """

    def __init__(
        self, model: Any, value_head: nn.Module | None, *, temperature: float, chunk_tokens: int | None
    ) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens

    def forward(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return log-probability, entropy and value of every response token that counts."""
        hidden_RLD = body_of(self.model)(input_ids=rows.tokens_RL, use_cache=False).last_hidden_state
        hidden_TD = hidden_RLD.flatten(0, 1).index_select(0, rows.places_T)
        head = head_of(self.model, self._temperature)
        logprobs_T, entropies_T = token_logprobs(hidden_TD, head, rows.chosen_T, chunk_tokens=self._chunk_tokens)
        values_T = None if self.value_head is None else self.value_head(hidden_TD).flatten()
        return logprobs_T, entropies_T, values_T


def shard(scores: PolicyScores, mesh: DeviceMesh) -> None:
    """Split all weights over the ranks of the mesh, by their first dimension; gradients are summed, not averaged.

    A layer's weights are gathered before it computes and dropped after it. Embedding, head and last norm are gathered
    for the whole pass.
    """
    for layer in layers_of(scores.model):
        fully_shard(layer, mesh=mesh)
    fully_shard(scores, mesh=mesh)
    for module in scores.modules():
        if isinstance(module, FSDPModule):
            # The loss of every rank is divided by the tokens of the whole update already. Gloo can only sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # The first gathering may move a shard to a padded buffer: it has to come before anything refers to it.
            module.unshard()
            module.reshard()


def trained_weights(scores: PolicyScores) -> dict[str, DTensor]:
    """Return the sharded weights that are trained, by the names that they have in the model; `value_head.NAME` too."""
    named = {name.removeprefix("model."): weight for name, weight in scores.named_parameters() if weight.requires_grad}
    assert all(isinstance(weight, DTensor) for weight in named.values())
    return named  # type: ignore[return-value]
