"""Strategies as pure functions, with one loop that serves them all."""
