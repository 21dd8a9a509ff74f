"""`palmette models`: lists the models that need no hub."""

import json

from palmette.commands import flags
from palmette.units import format_bytes, format_count


def models(as_json: flags.AsJson = False) -> None:
    """List the models that need no hub."""
    from rich.console import Console

    from palmette.report.table import plain_table
    from palmette.zoo.catalog import catalog

    cards = catalog()
    if as_json:
        print(json.dumps([vars(card) for card in cards], indent=2))
        return
    table = plain_table("name", "role", "params", "bytes", "license")
    table.add_column("PyPI package", justify="left")
    for card in cards:
        table.add_row(
            card.name,
            card.role,
            format_count(card.parameters) if card.parameters else "?",
            format_bytes(card.bytes) if card.bytes else "absent",
            card.license,
            card.source,
        )
    Console().print(table)
