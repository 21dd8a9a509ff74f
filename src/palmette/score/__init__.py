"""Scores reasoning steps with a model; extracts final answers and judges them."""
