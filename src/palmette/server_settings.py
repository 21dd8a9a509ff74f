"""The settings of servers that palmette starts itself."""

import shlex
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from palmette.strategy import StrategySettings

LOGS = "servers"
"""The folder, in a run's own, that servers write their output into."""


def _flags(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"write flags as in a shell: {error}") from None
    return text


class ServerSettings(BaseModel):
    """How `palmette up` starts servers. `vllm_python` and `sglang_python` are the Pythons that have these engines.

    Without them `vllm` and `python` are found on the PATH. `policy_flags` and `reward_flags` are added to the planned
    ones, as a shell would read them.
    """

    model_config = StrategySettings.model_config

    vllm_python: str | None = Field(None, min_length=1)
    sglang_python: str | None = Field(None, min_length=1)
    policy_flags: Annotated[str, AfterValidator(_flags)] = ""
    reward_flags: Annotated[str, AfterValidator(_flags)] = ""
    start_seconds: float = Field(600.0, gt=0, le=86_400)
    restarts: int = Field(1, ge=0, le=1000)
