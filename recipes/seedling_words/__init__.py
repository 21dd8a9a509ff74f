"""How the shipped models of the task `words` were trained."""
