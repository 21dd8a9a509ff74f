"""The built-in search strategies: each file is one, named like the file."""
