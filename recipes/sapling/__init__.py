"""How the models for `words` are trained."""
