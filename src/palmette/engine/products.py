"""Products of a tick's rows with large weights, by the routine of torch that is fastest for so many rows on a CPU."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import torch

FEW_ROWS = 4
"""Up to so many rows W @ x.T is computed in place of x @ W.T by MKL; more rows are multiplied by oneDNN.

Measured with the weights of SmolLM2-135M in float32 on two cores of an AMD EPYC (Zen 4), two threads, milliseconds for
all products of a tick, the fastest of 4 turns: x @ W.T by MKL, W @ x.T by MKL, x @ W.T by oneDNN:
4 rows 73, 41, 38 (with spinning threads 64, 24, 31); 8 rows 65, 57, 42; 16 rows 76, 68, 53; 64 rows 148, 135, 117;
256 rows 792, -, 685. oneDNN reads the weights as they are: its packed format is faster still (27, 30, 37, 100, 636),
but takes a copy of every weight.
A single row takes 38, 39, 33: MKL uses one thread for it. Divided into as many blocks of outputs as there are threads,
it takes 16 to 18.
"""


_DIVIDED_WEIGHTS = 2**18
"""A smaller weight is read by one thread as fast as by several."""


def _has_onednn() -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        found = torch.ops.mkldnn._linear_pointwise(torch.ones(8, 4), torch.ones(2, 4), None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((found == 4).all())


_ONEDNN = _has_onednn()


def fast_product(linear: torch.nn.Linear, values: torch.Tensor) -> torch.Tensor:
    """Return what the layer returns, but for rounding, by the fastest routine where no gradients are recorded.

    Other dtypes and devices than float32 on the CPU are left to the layer's own routine.
    """
    weight: torch.Tensor = linear.weight
    bias: torch.Tensor | None = linear.bias
    if (
        values.dtype != torch.float32
        or weight.dtype != torch.float32
        or weight.device.type != "cpu"
        or torch.is_grad_enabled()
    ):
        return torch.nn.functional.linear(values, weight, bias)
    outputs, inputs = weight.shape
    rows = values.numel() // max(1, inputs)
    if rows > FEW_ROWS and _ONEDNN:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
        return product
    if rows == 1:
        threads = torch.get_num_threads()
        if threads == 1 or outputs % threads or weight.numel() < _DIVIDED_WEIGHTS or not weight.is_contiguous():
            return torch.nn.functional.linear(values, weight, bias)
        blocks = weight.view(threads, outputs // threads, inputs)
        # Transposed, not reshaped: with other strides of a single column bmm takes a routine that is six times slower.
        product = torch.bmm(blocks, values.reshape(1, inputs).t().expand(threads, inputs, 1))
    elif 1 < rows <= FEW_ROWS:
        # Contiguous, because a model's code may view the result in another shape.
        product = torch.mm(weight, values.reshape(rows, inputs).t()).t().contiguous()
    else:
        return torch.nn.functional.linear(values, weight, bias)
    product = product.view(*values.shape[:-1], outputs)
    return product if bias is None else product.add_(bias)
