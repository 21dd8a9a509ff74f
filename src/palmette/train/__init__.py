"""Training of a policy in the memory there is."""
