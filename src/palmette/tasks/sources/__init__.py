"""Where questions come from, one file each: a file here is a task under its own name."""
