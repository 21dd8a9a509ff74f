"""How losses of tokens become the loss of an update, written as one weight for each sample."""

from collections.abc import Sequence
from typing import Literal

from palmette.errors import PalmetteError

Aggregation = Literal["token", "sequence", "constant"]
"""What the sum of token losses is divided by. token: the tokens of the update. sequence: each sample's tokens, then the
samples. constant: samples x the most tokens that a response may have."""


def sample_weights(tokens: Sequence[int], aggregation: Aggregation, limit_tokens: int) -> list[float]:
    """Return the weight of each sample, by which its token losses are multiplied before the sum over all samples.

    The weighted sum is then divided by all tokens of the update, whatever the aggregation, so that neither
    micro-batches nor pieces change more than rounding. `tokens` are the tokens of each sample that count.

    - token: 1.
    - sequence: total / (samples x tokens of the sample).
    - constant: total / (samples x `limit_tokens`).
    """
    if any(count < 1 for count in tokens) or limit_tokens < 1:
        raise PalmetteError(f"no weights for samples of {min(tokens)} tokens and a limit of {limit_tokens}")
    total = sum(tokens)
    if aggregation == "sequence":
        return [total / (len(tokens) * count) for count in tokens]
    if aggregation == "constant":
        return [total / (len(tokens) * limit_tokens)] * len(tokens)
    return [1.0] * len(tokens)
