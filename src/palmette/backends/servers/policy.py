"""The policy on servers: its settings, its tokenizer on this machine, and the backend that asks for its steps."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from palmette.backends.servers.backend import ServedBackend
from palmette.backends.servers.client import require_httpx
from palmette.backends.servers.dialect import Dialect, Request
from palmette.backends.servers.served_model import ServedModel
from palmette.backends.step_text import StepText, end_tokens_of
from palmette.errors import ConfigError
from palmette.settings import PolicySettings


@dataclass(frozen=True)
class Policy:
    """A policy by its settings, with its tokenizer and the local folder that the tokenizer is from."""

    settings: PolicySettings
    tokenizer: Any
    end_tokens: frozenset[int]
    folder: str

    @property
    def model(self) -> ServedModel:
        """The model that a server has to have."""
        settings = self.settings
        return ServedModel(
            "policy.model", settings.model, "policy.served_model", settings.served_model, self.tokenizer, self.folder
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
        return_seconds=settings.return_seconds,
    )
