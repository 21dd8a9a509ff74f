"""Practices of search and training as data: a rule each, how it was measured, and the check that can be executed."""
