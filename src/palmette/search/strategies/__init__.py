"""Search strategies, one file each: a file here is a strategy under its own name."""
