"""Walls of the operating system around a process that reads model text; each file is one, none looks at the text."""
