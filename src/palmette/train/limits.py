"""How much of the logits one update computes at a time: the learner keeps to it, the plan counts with it."""

CHUNK_BYTES = 48 * 2**20
"""Logits of one chunk of the learner's head: 256 tokens at 49,152 words, where matrix products on a CPU reach their
full speed."""

BLOCK_BYTES = 2**20
"""Logits that stay in a CPU core's cache while they are exponentiated and summed, in a buffer beside the chunk's."""
