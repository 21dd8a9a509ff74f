"""The model that servers have to have: by its name, and by the tokens of its tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from palmette.backends.servers.client import Client
from palmette.backends.servers.dialect import TEST_TEXT
from palmette.errors import ConfigError
from palmette.units import one_line


@dataclass(frozen=True)
class ServedModel:
    """A model by the setting that names it, `key`, and that which says what servers call it, `served_key`.

    `tokenizer` is this machine's copy, `folder` the local folder that it is from.
    """

    key: str
    name: str
    served_key: str
    served_name: str | None
    tokenizer: Any
    folder: str

    def name_on(self, client: Client, served: Mapping[str, str]) -> str:
        """Return the name by which a server has this model; `served` has the model behind every name there.

        With a served name that name is the one; without it a name or its model has to be the model's own, its folder,
        or a folder of the same name on another machine. Raises ConfigError if none is.
        """
        asked = self.served_name
        known = {self.name, self.folder}
        last = {PurePath(name).name.casefold() for name in known}
        for name, model in served.items():
            if name == asked if asked else not {name, model}.isdisjoint(known):
                return name
        for name, model in served.items():
            if not asked and not {PurePath(name).name.casefold(), PurePath(model).name.casefold()}.isdisjoint(last):
                return name
        found = one_line(", ".join(served) or "no model", 200)
        raise ConfigError(
            f"{client.address} serves {found}, not {asked or self.name}: set {self.key} to the model that "
            f"it serves, or {self.served_key} to its name there if it is the same model"
        )

    def test_tokens(self, *, special: bool) -> list[int]:
        """Return the tokens of the test text, with or without special tokens around them."""
        return list(self.tokenizer.encode(TEST_TEXT, add_special_tokens=special))

    def check_tokens(self, client: Client, found: Sequence[int], *, special: bool) -> None:
        """Raise ConfigError unless a server gives the test text the same tokens as the model's own tokenizer."""
        start = self.tokenizer.bos_token_id  # Some servers put one before every text, whatever the tokenizer says.
        ours, theirs = (
            tokens[1:] if tokens[:1] == [start] else tokens for tokens in (self.test_tokens(special=special), [*found])
        )
        if ours != theirs:
            raise ConfigError(
                f"the tokenizer at {client.address} gives a test text {len(theirs)} tokens, that of {self.key} "
                f"{self.name} {len(ours)} other ones: serve and name the same model"
            )
