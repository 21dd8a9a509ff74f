"""Products of few rows in the faster order, against the layers' own."""

import pytest
import torch

from palmette.engine.few_rows import MOST_ROWS, fast_for_few_rows, plain_linears


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (3,), (1, 4), (1, MOST_ROWS), (2, 3), (1, MOST_ROWS + 1), (1, 40), (0,)])
@torch.inference_mode()
def test_a_layer_gives_what_it_gives_by_itself(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 96, bias=bias)
    values = torch.randn(*shape, 48)
    expected = linear(values)
    with fast_for_few_rows([linear]):
        found = linear(values)
    assert found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert "forward" not in linear.__dict__


@torch.inference_mode()
def test_other_dtypes_are_computed_by_the_layer_s_own_code() -> None:
    linear = torch.nn.Linear(48, 96).bfloat16()
    values = torch.randn(4, 48).bfloat16()
    expected = linear(values)
    with fast_for_few_rows([linear]):
        assert torch.equal(linear(values), expected)


def test_layers_with_code_of_their_own_are_left_alone_and_an_error_restores_all() -> None:
    class Own(torch.nn.Linear):
        pass

    changed = torch.nn.Linear(2, 2)
    changed.forward = lambda values: values  # type: ignore[method-assign, assignment]
    plain = torch.nn.Linear(2, 2)
    assert plain_linears(torch.nn.Sequential(Own(2, 2), changed, plain, torch.nn.ReLU())) == [plain]
    with fast_for_few_rows([plain]), pytest.raises(RuntimeError):
        plain(torch.zeros(3, 5))
    with pytest.raises(RuntimeError), fast_for_few_rows([plain]):
        plain(torch.zeros(3, 5))
    assert "forward" not in plain.__dict__
