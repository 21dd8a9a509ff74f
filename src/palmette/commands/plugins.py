"""`palmette plugins`: lists everything that can be named in a config beside models, built in and installed."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette import registry
from palmette.commands import flags
from palmette.errors import ConfigError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def plugins(
    kind: Annotated[str | None, typer.Argument(help=f"{', '.join(registry.KINDS)}; all of them by default.")] = None,
    as_json: flags.AsJson = False,
) -> None:
    """List what can be named in a config beside models; strategies, algorithms and credit with their own settings."""
    from rich.console import Console
    from rich.markup import escape

    from palmette.report.table import plain_table

    if kind is not None and kind not in registry.KINDS:
        raise ConfigError(f"no kind of part is named {kind!r}: choose one of {', '.join(registry.KINDS)}")
    rows = [_row(listing) for name in ([kind] if kind else registry.KINDS) for listing in registry.listings(name)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = plain_table("kind", "name", "from")
    for column in table.columns:
        column.justify = "left"
    table.add_column("what it does; its own settings of search. or train.", justify="left", overflow="fold")
    for row in rows:
        settings = "".join(f"\n{key}{_shown(value)}" for key, value in row["settings"].items())
        table.add_row(*(escape(text) for text in (row["kind"], row["name"], row["from"], row["summary"] + settings)))
    console = Console()
    console.print(table)
    groups = ", ".join(listed.group for listed in registry.KINDS.values())
    console.print(
        f"One of your own is named package.module:name, or installed by an entry point of {groups}.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _row(listing: registry.Listing) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": listing.kind, "name": listing.name, "from": listing.source}
    row.update(summary="", settings={})
    has_settings = listing.kind in ("strategy", "algorithm", "credit")
    if not has_settings and listing.source == "palmette":
        row["summary"] = registry.first_line(listing.kind, listing.name)  # Importing some of them imports torch.
        return row
    from palmette.strategy import summary_of

    try:
        part = registry.find(listing.kind, listing.name)
    except ConfigError as error:  # Somebody else's package: the list must still print.
        row["summary"] = str(error)
        return row
    row["summary"] = summary_of(part)
    declared = getattr(part, "Settings", None) if has_settings and isinstance(part, type) else None
    row["settings"] = {key: _setting(field) for key, field in getattr(declared, "model_fields", {}).items()}
    return row


def _shown(setting: dict[str, Any]) -> str:
    default = ", required" if setting["required"] else f" = {setting['default']}"
    return f"{default}: {setting['meaning']}"


def _setting(field: "FieldInfo") -> dict[str, Any]:
    """Return a setting as JSON values; a default that follows from other settings is not known here."""
    from pydantic_core import to_jsonable_python

    known = not field.is_required() and not field.default_factory_takes_validated_data
    default = field.get_default(call_default_factory=True) if known else None
    return {
        "default": to_jsonable_python(default, serialize_unknown=True),
        "required": field.is_required(),
        "meaning": field.description or "",
    }
