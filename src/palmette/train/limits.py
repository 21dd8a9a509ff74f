"""How much an update computes at a time: the learner keeps to it, the planner counts with it."""

CHUNK_BYTES = 48 * 2**20
"""Logits of one chunk of tokens: 256 tokens at a vocabulary of 49,152, with which matrix products on a CPU reach full
speed."""

BLOCK_BYTES = 2**20
"""Logits of one block of a chunk's rows, few enough to stay in a CPU core's cache while they are exponentiated and
summed. One buffer of this size is held beside the chunk."""

BLOCK_NUMBERS = 2**20
"""Numbers of a weight that an optimizer with bfloat16 state has in float32 at a time, in four buffers, and one more of
random numbers."""
