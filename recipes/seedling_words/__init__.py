"""How `seedling-words` and its reward model were made: small models of the task `words`, trained from scratch."""
