"""Formulas in code, executed on random numbers behind walls and compared with palmette's own."""
