"""Tables that hold the settings of a part that they name: of a strategy, of an algorithm."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from palmette.settings.values import Settings


def split_options(table: type[Settings], values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what belongs to the part that a table names, its strategy or its algorithm, and what to the table itself.

    A table that was read before has what belongs to its part under `options`.
    """
    shared = [key for key in table.model_fields if key != "options" and key in values]
    return {str(key): values[key] for key in values if key not in shared}, {key: values[key] for key in shared}


class SettingsWithOptions(Settings):
    """A table whose `options` are the settings that its part declares; in a file they stand beside the others."""

    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        own, shared = split_options(cls, values)
        return {**shared, "options": own}

    @model_serializer(mode="wrap")
    def _with_options(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        options = values.pop("options", {})
        return {**values, **options}
