"""Backends generate steps: one contract, one module for each implementation."""
