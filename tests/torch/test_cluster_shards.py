"""The planned shards of a rank against FSDP2's own, and against a whole model counted tensor by tensor."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from palmette.planner.cluster.rank_sizes import layer_parameters, root_parameters, sharded_parameters
from palmette.planner.models.shape import read_shape

_SIZES: dict[str, Any] = {
    "vocab_size": 515, "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
_CONFIGS = [
    LlamaConfig(**_SIZES, tie_word_embeddings=False),
    LlamaConfig(**_SIZES, tie_word_embeddings=True),
    Qwen2Config(**_SIZES, tie_word_embeddings=False),
]


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    count = int(request.param)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    yield count
    dist.destroy_process_group()


@pytest.mark.parametrize("config", _CONFIGS, ids=["llama", "llama-tied", "qwen2"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8], indirect=True)
def test_a_rank_keeps_what_is_planned(config: PreTrainedConfig, ranks: int) -> None:
    model = AutoModelForCausalLM.from_config(config)
    shape = read_shape("tiny", config.to_dict())
    layers = list(model.model.layers)
    assert layer_parameters(shape) == sum(weight.numel() for weight in layers[0].parameters())
    assert root_parameters(shape) == shape.parameters - len(layers) * layer_parameters(shape)
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    shards = [weight for weight in model.parameters() if isinstance(weight, DTensor)]
    kept = sum(shard.to_local().numel() for shard in shards)
    small = [shard for shard in shards if shard.dim() == 1]
    # Each norm and bias may be rounded up by one number, the matrices are planned exactly.
    assert kept - len(small) <= sharded_parameters(shape, ranks) <= kept + len(small)
    assert sharded_parameters(shape, 1) == shape.parameters
