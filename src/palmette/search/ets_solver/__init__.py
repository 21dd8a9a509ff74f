"""Exact solvers for the set of leaves that ETS keeps. They know costs and values, but no steps and no scores."""
