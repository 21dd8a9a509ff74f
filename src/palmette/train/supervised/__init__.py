"""Training on rows of a file: solutions to imitate, steps with labels to score."""
