"""How much one tick computes at most: the engine keeps to these limits, the planner counts with them."""

POOL_FIRST_BYTES = 64 * 2**20
"""Initial size of a KV pool without a budget; it doubles when it is full."""

PREFILL_TOKENS = 2048
"""The most prefill tokens of one tick. Decode tokens, one for each running lane, come on top."""

DRAFTED_TICK_TOKENS = 4
"""Drafted tokens are added to a tick only up to this many tokens in all: so many rows are multiplied in one reading of
the weights, a fifth row takes half as long again.

With more, some row has a wrong guess in almost every tick, and a wave ends with its last row: with ticks of up to 16
tokens, SmolLM2 took 0.96 and 0.95 times the speed without drafts at 4 and 16 rows, with 3 and 2 of 100 passes fewer.
"""

DRAWN_LOGITS = 2**22
"""Logits sampled from at once: every temporary copy of them that sampling makes then takes at most 16 MiB (float32),
whatever the vocabulary."""

DRAWN_BLOCK = 512
"""Tokens per block of the vocabulary. A larger vocabulary is sampled from in two stages, first a block, then a token of
it: that takes 608 random numbers per row for SmolLM2's 49,152 tokens. Generating 49,152 of them took a fifth as long as
the forward pass."""

SORTED_LOGITS = 1024
"""How many of the largest logits top-k and top-p sort first. If these do not reach top-p, the whole vocabulary is
sorted: 49,152 tokens take nine times as long."""

SCORED_LOGITS = 2**24
"""Logits per tick for a scorer that reads the logits of every token: a large vocabulary then takes more ticks, not more
memory. A vocabulary of 49,152 gives 341 tokens per tick and 64 MiB; a full tick of 2,560 tokens would take 480 MiB."""

EMBEDDED_TOKENS = 2048
"""Tokens embedded in one pass, padding included: long steps then take more passes, not more memory."""

GATHERED_SLOTS = 4096
"""The most KV slots that attention gathers at once: the copy is then still in the CPU core's cache when it is read."""

PATH_SLOTS = 2048
"""If the paths of all tokens of a tick have so many KV slots together, each is read alone, shared parts again and
again: that takes 6 operations a layer in place of 13 for each batch of segments and 8 to merge."""


def scored_tokens(vocabulary: int) -> int:
    """Return how many tokens a tick may compute if the logits of every token are read."""
    return max(1, min(PREFILL_TOKENS, SCORED_LOGITS // vocabulary))


def pool_tokens(needed_tokens: int, token_bytes: int) -> int:
    """Return the size in tokens to which a pool without a budget grows in order to hold `needed_tokens`."""
    size = -(-POOL_FIRST_BYTES // token_bytes)
    while size < needed_tokens:
        size *= 2
    return size
