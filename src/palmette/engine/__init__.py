"""Generation inside the process."""
