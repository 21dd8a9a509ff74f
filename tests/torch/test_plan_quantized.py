"""Quantized weights: the planned bytes against those of the loaded model."""

import pytest

from palmette.planner.models.find_shape import find_shape
from palmette.planner.models.quantized import quantized_bytes
from palmette.zoo.load import load_policy


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_quantized_weights_take_the_planned_bytes_exactly(kind: str) -> None:
    model = load_policy("seedling", quantize=kind)[0]
    rotations = [buffer for name, buffer in model.named_buffers() if name.endswith("_rotation")]
    held = {each.data_ptr(): each.numel() * each.element_size() for each in [*model.parameters(), *rotations]}
    assert sum(held.values()) == quantized_bytes(find_shape("seedling"), "float32", kind)
