"""The built-in tasks: each file is one, named like the file."""
