"""A search on several workers: the driver here, the same search in each of them."""
