"""The OpenAI-compatible gateway: searches behind the interface that every client of a model speaks."""
