"""What a model weighs, by the numbers of its config.json: its tensors, its KV cache, its quantized weights."""
