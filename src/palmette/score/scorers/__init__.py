"""Scorers that run inside the process, one file each: a file here is a way to score under its own name."""
