"""The built-in judges, which decide whether an answer is right: each file is one, named like the file."""
