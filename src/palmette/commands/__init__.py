"""The command line, one file per command: flags in, exit code out, and what it shows."""
