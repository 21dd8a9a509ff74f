"""`python -m palmette`: the command line."""

from palmette.commands.app import main

main()
