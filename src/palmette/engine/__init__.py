"""In-process generation on a KV cache whose branches share their prefixes."""
