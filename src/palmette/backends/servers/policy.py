"""The policy that servers have to have: its tokenizer on this machine, and whether a server has the same model."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.client import Client, require_httpx
from palmette.backends.servers.dialect import TEST_TEXT, Dialect, Request
from palmette.backends.step_text import StepText, end_tokens_of
from palmette.errors import ConfigError
from palmette.settings import PolicySettings
from palmette.units import one_line


@dataclass(frozen=True)
class Policy:
    """A policy by its settings, with its tokenizer and the local folder that the tokenizer is from."""

    settings: PolicySettings
    tokenizer: Any
    end_tokens: frozenset[int]
    folder: str

    def name_on(self, client: Client, served: Mapping[str, str]) -> str:
        """Return the name by which a server has this policy; `served` has the model behind every name there.

        With `policy.served_model` that name is the one; without it a name or its model has to be `policy.model`, its
        folder, or a folder of the same name on another machine. Raises ConfigError if none is.
        """
        asked = self.settings.served_model
        known = {self.settings.model, self.folder}
        last = {PurePath(name).name.casefold() for name in known}
        for name, model in served.items():
            if name == asked if asked else not {name, model}.isdisjoint(known):
                return name
        for name, model in served.items():
            if not asked and not {PurePath(name).name.casefold(), PurePath(model).name.casefold()}.isdisjoint(last):
                return name
        found = one_line(", ".join(served) or "no model", 200)
        raise ConfigError(
            f"{client.address} serves {found}, not {asked or self.settings.model}: set policy.model to the model that "
            f"it serves, or policy.served_model to its name there if it is the same model"
        )

    def drawn(self, request: Request) -> dict[str, float]:
        """Return the temperature and the top-p of a request: its own, or those of the settings."""
        return {
            "temperature": self.settings.temperature if request.temperature is None else request.temperature,
            "top_p": self.settings.top_p if request.top_p is None else request.top_p,
        }

    def sampling(self, request: Request) -> dict[str, Any]:
        """Return what vLLM and SGLang call alike: a setting left out would be that of the model's generation config."""
        return {
            **self.drawn(request),
            "min_p": self.settings.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": [*request.stops],
            "stop_token_ids": sorted(self.end_tokens),
        }

    def test_tokens(self, *, special: bool) -> list[int]:
        """Return the tokens of the test text, with or without special tokens around them."""
        return list(self.tokenizer.encode(TEST_TEXT, add_special_tokens=special))

    def check_tokens(self, client: Client, found: Sequence[int], *, special: bool) -> None:
        """Raise ConfigError unless a server gives the test text the same tokens as the policy's own tokenizer."""
        start = self.tokenizer.bos_token_id  # Some servers put one before every text, whatever the tokenizer says.
        ours, theirs = (
            tokens[1:] if tokens[:1] == [start] else tokens for tokens in (self.test_tokens(special=special), [*found])
        )
        if ours != theirs:
            raise ConfigError(
                f"the tokenizer at {client.address} gives a test text {len(theirs)} tokens, that of policy.model "
                f"{self.settings.model} {len(ours)} other ones: serve and name the same model"
            )


def serve(settings: PolicySettings, dialect: Callable[[Policy], Dialect], kv_bytes_per_token: int) -> ServedBackend:
    """Return the backend of a policy on the servers at `policy.address`, which all speak one dialect.

    Raises ConfigError for settings that only a policy in this process can have.
    """
    for key, unset in (("adapter", None), ("quantize", "none")):
        if getattr(settings, key) != unset:
            raise ConfigError(
                f"policy.{key} is {getattr(settings, key)}, and the policy is on a server: start the server with a "
                f"model that is so, and leave policy.{key} out"
            )
    require_httpx()
    from palmette.zoo.load import load_tokenizer_of_served

    tokenizer, named, folder = load_tokenizer_of_served(settings.model)
    end_tokens = end_tokens_of(named, tokenizer)
    policy = Policy(settings, deepcopy(tokenizer), end_tokens, str(folder))
    return ServedBackend(
        dialect(policy),
        tokenizer,
        StepText(policy.tokenizer, end_tokens),
        addresses=settings.address,
        kv_bytes_per_token=kv_bytes_per_token,
        answer_seconds=settings.answer_seconds,
        most_in_flight=settings.batch_rows,
    )
