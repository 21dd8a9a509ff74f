"""The built-in scorers, which run inside the process: each file is one, named like the file."""
