"""`python -m palmette`: the command line."""

from palmette.cli import main

main()
