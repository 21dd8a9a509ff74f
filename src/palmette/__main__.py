"""`palmette` and `python -m palmette`: the command line."""

import sys


def main() -> None:
    """Import the commands and run the one that is asked for; Ctrl-C while they are imported is one line too."""
    try:
        from palmette.commands.app import main as run
    except KeyboardInterrupt:
        print("palmette: stopped", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
