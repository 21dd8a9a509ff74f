"""Checkpoints of a training run: whole or absent, checked before they are used."""
