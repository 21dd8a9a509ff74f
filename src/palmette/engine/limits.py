"""How much one tick computes at the most: the engine keeps to it, the plan counts with it."""

POOL_FIRST_BYTES = 64 * 2**20
"""What a KV pool without a budget begins with; it doubles when it is full."""

PREFILL_TOKENS = 2048
"""The most tokens of a tick that are not the next of a running row."""

DRAWN_LOGITS = 2**22
"""Logits in one draw: what it takes beside them stays at 16 MiB for each copy, whatever the vocabulary."""

DRAWN_BLOCK = 512
"""A larger vocabulary is drawn from in two races, for a block of tokens and inside it: 608 random numbers for each row
of SmolLM2's instead of 49,152, which took as long as a fifth of the forward pass."""

SORTED_LOGITS = 1024
"""Sorted first in a cut by rank. Where they do not reach top-p, all tokens are: 49,152 take nine times as long."""

SCORED_LOGITS = 2**24
"""Logits of one tick of a scorer that reads all of them, so that a large vocabulary takes more ticks, not more memory.
With 49,152 tokens: 341 of them a tick, 64 MiB; a whole tick of 2,560 would take 480."""

EMBEDDED_TOKENS = 2048
"""Tokens that are embedded together, padding included, so that long steps take more passes, not more memory."""

GATHERED_SLOTS = 4096
"""The most KV slots that attention gathers at once, so that the copy is still in the core's cache when it is read."""


def scored_tokens(vocabulary: int) -> int:
    """Return how many tokens a tick may read the logits of."""
    return max(1, min(PREFILL_TOKENS, SCORED_LOGITS // vocabulary))


def pool_tokens(needed_tokens: int, token_bytes: int) -> int:
    """Return the size to which a pool without a budget has grown when it holds this many tokens."""
    size = -(-POOL_FIRST_BYTES // token_bytes)
    while size < needed_tokens:
        size *= 2
    return size
