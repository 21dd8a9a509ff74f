"""Exact solvers for the set of leaves that ETS keeps. Knows no steps and no scores."""
