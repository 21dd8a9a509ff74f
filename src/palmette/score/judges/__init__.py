"""Who decides whether an answer is right, one file each: a file here is a judge under its own name."""
