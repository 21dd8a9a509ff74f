"""Search and training of reasoning models in the memory you have."""

__version__ = "0.1.0"
