"""Narrow weights as planned and as held."""

import pytest

from palmette.planner.find_shape import find_shape
from palmette.planner.shape import quantized_bytes
from palmette.zoo.load import load_policy


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_narrow_weights_weigh_what_was_planned_to_the_byte(weights: str) -> None:
    model = load_policy("seedling", quantize=weights)[0]
    rotations = [buffer for name, buffer in model.named_buffers() if name.endswith("_rotation")]
    held = {each.data_ptr(): each.numel() * each.element_size() for each in [*model.parameters(), *rotations]}
    assert sum(held.values()) == quantized_bytes(find_shape("seedling"), "float32", weights)
