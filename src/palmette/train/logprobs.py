"""Log-probabilities and entropies of chosen tokens from hidden states, without holding logits of all tokens at once.

The head computes the logits of one chunk of tokens at a time, in a buffer that all chunks reuse. The backward pass
computes them again and turns them in place into their gradient. Gradients are exact, for any upstream gradient of the
log-probabilities and of the entropies.

Shapes: T tokens, C tokens of a chunk, B tokens of a block of it, D hidden size, V vocabulary.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from palmette.train.limits import BLOCK_BYTES, CHUNK_BYTES
from palmette.train.model_parts import Head

_HALF = (torch.bfloat16, torch.float16)


def token_logprobs(
    hidden_TD: torch.Tensor, head: Head, tokens_T: torch.Tensor, *, chunk_tokens: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each token and the entropy in nats of its distribution, in float32 or wider.

    Holds logits of `chunk_tokens` x vocabulary at a time (by default `CHUNK_BYTES`; on a GPU twice that), and in the
    backward pass the gradient of the head's weight if it is trained.
    """
    weight = head.weight_VD
    row_bytes = weight.shape[0] * _sum_dtype(weight.dtype).itemsize
    chunk = chunk_tokens or max(1, CHUNK_BYTES // row_bytes)
    logprobs_T, entropies_T = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_TD, weight, head.bias_V, tokens_T, head.softcap, head.temperature, chunk
    )
    return logprobs_T, entropies_T


def no_logprobs(hidden_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return zeros in the place of log-probabilities and entropies, for a model of which only values are read."""
    zeros_T = hidden_TD.new_zeros(hidden_TD.shape[0], dtype=_sum_dtype(hidden_TD.dtype))
    return zeros_T, zeros_T.clone()


def plain_logprobs(hidden_TD: torch.Tensor, head: Head, tokens_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as `token_logprobs`, computed from full logits: the reference for tests and benchmarks."""
    logs_TV = torch.log_softmax(head.logits(hidden_TD) / head.temperature, dim=-1)
    entropies_T = -(logs_TV.exp() * logs_TV).sum(-1)
    return logs_TV.gather(1, tokens_T[:, None])[:, 0], entropies_T


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        tokens_T: torch.Tensor,
        softcap: float | None,
        temperature: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, dtype = hidden_TD.shape[0], _sum_dtype(hidden_TD.dtype)
        head = Head(weight_VD, bias_V, softcap, temperature)
        logprobs_T, entropies_T, logsums_T = (hidden_TD.new_empty(tokens, dtype=dtype) for _ in range(3))
        buffers = _Buffers(hidden_TD, weight_VD, min(chunk, tokens))
        for part in _parts(0, tokens, chunk):
            logits_CV = _logits(hidden_TD[part], head, buffers.logits_CV)
            for block in _parts(part.start, part.stop, buffers.block):
                logits_BV, exps_BV = buffers.of(logits_CV, block, part)
                top_B1 = logits_BV.amax(-1, keepdim=True)
                torch.exp(logits_BV.sub_(top_B1), out=exps_BV)
                sums_B = exps_BV.sum(-1)
                logs_B = sums_B.log()
                logprobs_T[block] = logits_BV.gather(1, tokens_T[block, None])[:, 0] - logs_B
                entropies_T[block] = logs_B - exps_BV.mul_(logits_BV).sum(-1) / sums_B
                logsums_T[block] = logs_B + top_B1[:, 0]
        ctx.save_for_backward(hidden_TD, weight_VD, bias_V, tokens_T, logsums_T, entropies_T)
        ctx.settings = softcap, temperature, chunk
        ctx.set_materialize_grads(False)
        return logprobs_T, entropies_T

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs_T: torch.Tensor | None, grad_entropies_T: torch.Tensor | None
    ) -> tuple[Any, ...]:
        hidden_TD, weight_VD, bias_V, tokens_T, logsums_T, entropies_T = ctx.saved_tensors
        softcap, temperature, chunk = ctx.settings
        head = Head(weight_VD, bias_V, softcap, temperature)
        tokens, dtype = hidden_TD.shape[0], logsums_T.dtype
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        if grad_logprobs_T is None:
            grad_logprobs_T = torch.zeros_like(logsums_T)
        grad_hidden_TD = torch.empty_like(hidden_TD) if for_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=dtype) if for_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=dtype) if for_bias else None
        buffers = _Buffers(hidden_TD, weight_VD, min(chunk, tokens))
        for part in _parts(0, tokens, chunk):
            grad_CV = _logits(hidden_TD[part], head, buffers.logits_CV)
            for block in _parts(part.start, part.stop, buffers.block):
                logits_BV, spare_BV = buffers.of(grad_CV, block, part)
                derivatives_BV = None
                if softcap is not None:  # The derivative of the softcap, 1 - tanh^2, before logits_BV is overwritten.
                    derivatives_BV = logits_BV.mul(temperature / softcap).square_().neg_().add_(1)
                _to_gradient(
                    logits_BV.sub_(logsums_T[block, None]),
                    spare_BV,
                    grad_logprobs_T[block, None],
                    None if grad_entropies_T is None else grad_entropies_T[block, None],
                    entropies_T[block, None],
                )
                logits_BV.scatter_add_(1, tokens_T[block, None], grad_logprobs_T[block, None])
                if derivatives_BV is not None:
                    logits_BV.mul_(derivatives_BV)
            if grad_bias_V is not None:
                grad_bias_V.add_(grad_CV.sum(0), alpha=1 / temperature)
            grad_cast_CV = grad_CV.to(weight_VD.dtype)
            if grad_hidden_TD is not None:
                out = grad_hidden_TD[part]
                torch.addmm(out, grad_cast_CV, weight_VD, beta=0, alpha=1 / temperature, out=out)
            if grad_weight_VD is not None:
                _add_product(grad_weight_VD, grad_cast_CV.t(), hidden_TD[part], 1 / temperature)
        return (
            grad_hidden_TD,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            *[None] * 4,
        )


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which to compute and sum: float32 for half precision, else the same."""
    return torch.float32 if dtype in _HALF else dtype


def _parts(first: int, last: int, length: int) -> Iterator[slice]:
    for start in range(first, last, length):
        yield slice(start, min(start + length, last))


class _Buffers:
    """Buffers that all chunks reuse: the logits of a chunk, and a spare buffer for one block of its rows."""

    def __init__(self, hidden_TD: torch.Tensor, weight_VD: torch.Tensor, chunk: int) -> None:
        dtype, vocabulary = _sum_dtype(hidden_TD.dtype), weight_VD.shape[0]
        self.logits_CV = hidden_TD.new_empty(chunk, vocabulary, dtype=dtype)
        # A GPU is fastest with large blocks, a CPU core with blocks that fit its cache.
        on_cpu = hidden_TD.device.type == "cpu"
        self.block = min(chunk, max(1, BLOCK_BYTES // (vocabulary * dtype.itemsize))) if on_cpu else chunk
        self.spare_BV = hidden_TD.new_empty(self.block, vocabulary, dtype=dtype)

    def of(self, logits_CV: torch.Tensor, block: slice, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the block's rows of the chunk's logits, and as many rows of the spare buffer."""
        rows = block.stop - block.start
        return logits_CV[block.start - part.start :][:rows], self.spare_BV[:rows]


def _logits(hidden_CD: torch.Tensor, head: Head, buffer: torch.Tensor) -> torch.Tensor:
    """Write logits to the buffer's first rows, with softcap and divided by the temperature; return these rows.

    The division takes no pass of its own: the matrix product scales its result.
    """
    out = buffer[: hidden_CD.shape[0]]
    scale = 1 / (head.softcap or head.temperature)
    if out.dtype == hidden_CD.dtype:
        bias_V = out if head.bias_V is None else head.bias_V
        beta = 0 if head.bias_V is None else scale
        torch.addmm(bias_V, hidden_CD, head.weight_VD.t(), beta=beta, alpha=scale, out=out)
    else:
        out.copy_(torch.nn.functional.linear(hidden_CD, head.weight_VD, head.bias_V)).mul_(scale)
    return out if head.softcap is None else out.tanh_().mul_(head.softcap / head.temperature)


def _to_gradient(
    logs_BV: torch.Tensor,
    spare_BV: torch.Tensor,
    grad_logprob_B1: torch.Tensor,
    grad_entropy_B1: torch.Tensor | None,
    entropy_B1: torch.Tensor,
) -> None:
    """Turn log-probabilities in place into the gradient of the logits, without the term [j = y] of the chosen token y.

    With p = exp(logs): d logprob_y / d logit_j = [j = y] - p_j and d entropy / d logit_j = -p_j (logs_j + entropy).
    """
    if grad_entropy_B1 is None:
        logs_BV.exp_().mul_(-grad_logprob_B1)
    else:
        torch.exp(logs_BV, out=spare_BV)
        logs_BV.mul_(-grad_entropy_B1).sub_(grad_logprob_B1 + grad_entropy_B1 * entropy_B1).mul_(spare_BV)


def _add_product(into_VD: torch.Tensor, left_VC: torch.Tensor, right_CD: torch.Tensor, scale: float) -> None:
    if into_VD.dtype == left_VC.dtype:
        into_VD.addmm_(left_VC, right_CD, alpha=scale)
    else:  # Half precision: chunks are summed in float32, and addmm_ cannot add a half product to a float32 sum.
        into_VD.add_(left_VC @ right_CD, alpha=scale)
