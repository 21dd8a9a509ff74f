"""A small policy of `words` from scratch, and its judge."""
