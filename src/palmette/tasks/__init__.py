"""Tasks: loads questions and turns them into chat messages."""
