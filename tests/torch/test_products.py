"""Products by the routine that is fastest for the number of rows, against the layers' own."""

import pytest
import torch

from palmette.engine import products
from palmette.engine.products import FEW_ROWS, product

SHAPES = [(1,), (1, 1), (3,), (1, FEW_ROWS), (2, 3), (1, FEW_ROWS + 1), (1, 16), (3, 5), (1, 40), (1, 48), (90,), (0,)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("outputs", [96, 97])
@torch.inference_mode()
def test_a_layer_gives_what_it_gives_by_itself(
    shape: tuple[int, ...], outputs: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("palmette.engine.products._DIVIDED_WEIGHTS", 48)
    linear = torch.nn.Linear(48, outputs, bias=bias)
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # A single row is divided among threads where they divide the outputs: 96, not 97.
    try:
        for values in (torch.randn(*shape, 48), torch.randn(48, *shape).movedim(0, -1)):
            expected = linear(values)
            found = product(values, linear.weight, linear.bias)
            assert found.shape == expected.shape and found.is_contiguous()
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def test_weights_that_are_views_with_other_strides_give_the_same() -> None:
    linear = torch.nn.Linear(48, 96)
    linear.weight = torch.nn.Parameter(linear.weight.t().contiguous().t())
    for rows in (1, 3, 16, 20):
        values = torch.randn(rows, 48)
        expected = linear(values)
        torch.testing.assert_close(product(values, linear.weight, linear.bias), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_other_dtypes_are_computed_by_the_layer_s_own_code() -> None:
    linear = torch.nn.Linear(48, 96).bfloat16()
    values = torch.randn(4, 48).bfloat16()
    expected = linear(values)
    assert torch.equal(product(values, linear.weight, linear.bias), expected)


@pytest.mark.parametrize("rows", [1, 3, 16, 20])
def test_gradients_are_those_of_the_layer_s_own_code(rows: int) -> None:
    linear = torch.nn.Linear(48, 96)
    values = torch.randn(rows, 48)
    linear(values).square().sum().backward()
    expected = linear.weight.grad
    linear.zero_grad()
    product(values, linear.weight, linear.bias).square().sum().backward()
    found = linear.weight.grad
    assert expected is not None
    assert found is not None
    assert torch.equal(found, expected)


@torch.inference_mode()
def test_onednn_compiles_code_for_few_numbers_of_rows_whatever_ticks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(256, 256)
    seen: set[tuple[int, ...]] = set()
    own = products._ONEDNN
    assert callable(own)

    def noted(values: torch.Tensor, weight: torch.Tensor, *others: object) -> torch.Tensor:
        seen.add((len(values), len(weight)))
        found: torch.Tensor = own(values, weight, *others)
        return found

    monkeypatch.setattr(products, "_ONEDNN", noted)
    for rows in range(1, 540):
        values = torch.randn(rows, 256)
        found = product(values, linear.weight, linear.bias)
        torch.testing.assert_close(found, linear(values), rtol=0, atol=1e-5)
        assert found.shape == (rows, 256) and found.is_contiguous()
    assert seen == {(256, rows) if rows <= products.MOST_LANES else (rows, 256) for rows in products.ROWS}
