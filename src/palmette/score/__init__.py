"""How good a step looks, how true an answer is."""
