"""Products of a tick's rows with large weights, by the routine of torch that is fastest for so many rows on a CPU."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

import torch

FEW_ROWS = 4
"""Up to so many rows W @ x.T is computed in place of x @ W.T by MKL; more rows are multiplied by oneDNN.

Measured with the weights of SmolLM2-135M in float32 on two cores of an AMD EPYC (Zen 4), two threads, milliseconds for
all products of a tick, the fastest of 4 turns: x @ W.T by MKL, W @ x.T by MKL, x @ W.T by oneDNN:
4 rows 73, 41, 38 (with spinning threads 64, 24, 31); 8 rows 65, 57, 42; 16 rows 76, 68, 53; 64 rows 148, 135, 117;
256 rows 792, -, 685.
A single row takes 38, 39, 33: MKL uses one thread for it. Divided into as many blocks of outputs as there are threads,
it takes 16 to 18.
"""

MOST_LANES = 64
"""Up to so many rows oneDNN, too, computes W @ x.T.

It then reads the weights as they are; for x @ W.T it first brings them into an order of its own, in every tick, or once
for all in a copy that takes as much memory as the weights. Measured as above, half of the layers, x @ W.T, W @ x.T with
its result put in order, x @ W.T with a copy: 12 rows 86, 79, 75; 16 rows 92, 81, 79; 24 rows 102, 104, 92; 48 rows 157,
134, 132; 64 rows 174, 166, 160; 128 rows 281, 291, 267; 256 rows 481, 537, 458.
"""

ROWS = (16, 32, 48, MOST_LANES, 96, 128, 160, 192, 224, 256, 352, 512)
"""The numbers of rows that oneDNN multiplies; others are filled up with zeros.

It keeps compiled code for each number of rows and shape of weight, 0.6 to 0.7 MiB each, up to 1,024 of them: with every
number of rows as it comes, 300 of them took 610 MiB. So many as here take 39 MiB for the five shapes of SmolLM2-135M.
Measured as above, half of the layers, MKL and oneDNN filled up: 80 rows 123, 107 (with 96); 144 rows 186, 157 (160);
512 rows 500, 437. A likelihood of SmolLM2's vocabulary is read from 341 rows at a time.
"""

_FILLED_ROWS = 256
_MOST_EMPTY = 1 / 8
"""Above `_FILLED_ROWS` rows MKL multiplies where more than this share of oneDNN's rows would be empty: it takes about a
seventh longer for as many rows. Below, the sizes are so close that filling up always pays."""

_ONEDNN_WEIGHTS = 2**16
"""Smaller weights are multiplied by MKL: oneDNN keeps code for each number of rows it has seen, which took 66 MB in a
search with a model of 1.2 M weights."""

_DIVIDED_WEIGHTS = 2**18
"""A smaller weight is read by one thread as fast as by several."""


def _onednn() -> object:
    """Return torch's operator for oneDNN's product with plain weights, None where torch has none that works."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
        found = operator(torch.ones(8, 4), torch.ones(2, 4), None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return operator if bool((found == 4).all()) else None


_ONEDNN = _onednn()


def _filled_up(rows: int) -> int | None:
    """Return the number of rows that oneDNN multiplies in place of so many, None where MKL is to do it."""
    size = next((size for size in ROWS if size >= rows), None)
    if size is not None and size > _FILLED_ROWS and size - rows > size * _MOST_EMPTY:
        return None
    return size


def product(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return what torch's `linear` returns, but for rounding, by the fastest routine where no gradients are recorded.

    Other dtypes and devices than float32 on the CPU are left to `linear`.
    """
    if (
        values.dtype is not torch.float32
        or weight.dtype is not torch.float32
        or not weight.is_cpu
        or torch.is_grad_enabled()
    ):
        return torch.nn.functional.linear(values, weight, bias)
    outputs, inputs = weight.shape
    rows = values.numel() // max(1, inputs)
    made: torch.Tensor
    if rows > FEW_ROWS and weight.numel() >= _ONEDNN_WEIGHTS and callable(_ONEDNN):
        size = _filled_up(rows)
        if size is None:
            return torch.nn.functional.linear(values, weight, bias)
        try:
            filled = values.reshape(rows, inputs)
            if size > rows:
                filled = torch.nn.functional.pad(filled, (0, 0, 0, size - rows))
            if size > MOST_LANES:
                made = _ONEDNN(filled, weight, bias, "none", [], "")[:rows]
                return made.view(*values.shape[:-1], outputs)
            # Contiguous, because a model's code may view the result in another shape.
            made = _ONEDNN(weight, filled, None, "none", [], "")[:, :rows].t().contiguous()
        except RuntimeError:
            # "could not create a primitive" is all that oneDNN says where memory ran out. The layer's own routine
            # either still fits or says so in words that the out-of-memory retry knows.
            return torch.nn.functional.linear(values, weight, bias)
    elif rows == 1:
        threads = torch.get_num_threads()
        if threads == 1 or outputs % threads or weight.numel() < _DIVIDED_WEIGHTS or not weight.is_contiguous():
            return torch.nn.functional.linear(values, weight, bias)
        blocks = weight.view(threads, outputs // threads, inputs)
        # Transposed, not reshaped: with other strides of a single column bmm takes a routine that is six times slower.
        made = torch.bmm(blocks, values.reshape(1, inputs).t().expand(threads, inputs, 1))
    elif 1 < rows <= FEW_ROWS:
        made = torch.mm(weight, values.reshape(rows, inputs).t()).t().contiguous()
    else:
        return torch.nn.functional.linear(values, weight, bias)
    made = made.view(*values.shape[:-1], outputs)
    return made if bias is None else made.add_(bias)
