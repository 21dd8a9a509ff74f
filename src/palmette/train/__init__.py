"""Training of a policy within a memory limit."""
