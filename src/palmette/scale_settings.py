"""The settings of a run on several workers: how many, on which Ray cluster, and how long each may take."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from palmette.errors import ConfigError
from palmette.strategy import StrategySettings
from palmette.units import parse_bytes

_ADDRESS = re.compile(r"auto|(ray://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")


def _cluster_address(text: str) -> str:
    if _ADDRESS.fullmatch(text) is None or int(text.rpartition(":")[2] if ":" in text else 1) not in range(1, 65_536):
        raise ValueError("write ray://HOST:10001, HOST:6379, or auto for the cluster that this machine belongs to")
    return text


def _memory(amount: Any) -> str | int | None:
    if amount is None:
        return None
    try:
        if isinstance(amount, str | int) and not isinstance(amount, bool) and parse_bytes(amount) > 0:
            return amount
    except ConfigError as error:
        raise ValueError(str(error)) from None
    raise ValueError("write an amount of memory like '2GiB', or a whole number of bytes")


class ScaleSettings(BaseModel):
    """A run on several workers by Ray. Without `workers` and `address` everything happens in this process.

    `workers` null with an address means as many as the cluster has room for. Without an address a cluster of this
    machine alone is started, and ended with the run. What a worker is given: `worker_cpus`, null for an equal share of
    this machine's cores, or one core of a cluster; `worker_gpus`; `worker_memory`, null for what the plan counts. A
    worker may take `start_seconds` to be placed and to load its models, and `answer_seconds` without a sign of
    progress. One that ends is started again `restarts` times.

    With `ranks` a training run learns in so many processes, each with a share of the weights: on the cluster at
    `address`, else on this machine without Ray. `staleness` is how many updates old the weights may be that have
    written what an update learns from. With `workers` a training run has its rollouts written there; `transport` is how
    new weights get to them: by Ray's object store, or by a broadcast of torch.distributed.
    """

    model_config = StrategySettings.model_config

    workers: int | None = Field(None, ge=1, le=10_000)
    address: Annotated[str, AfterValidator(_cluster_address)] | None = None
    worker_cpus: float | None = Field(None, gt=0, le=1024)
    worker_gpus: float = Field(0.0, ge=0, le=64)
    worker_memory: Annotated[Any, AfterValidator(_memory)] = None
    start_seconds: float = Field(300.0, gt=0, le=86_400)
    answer_seconds: float = Field(600.0, gt=0, le=86_400)
    restarts: int = Field(3, ge=0, le=1000)
    ranks: int | None = Field(None, ge=1, le=10_000)
    staleness: int = Field(0, ge=0, le=64)
    transport: Literal["store", "broadcast"] = "store"

    @model_validator(mode="after")
    def _whole_gpus(self) -> "ScaleSettings":
        if self.worker_gpus > 1 and self.worker_gpus != int(self.worker_gpus):
            raise ValueError(f"worker_gpus {self.worker_gpus} cannot be had: a part of one GPU, or whole ones")
        return self

    @property
    def is_on(self) -> bool:
        """Whether the run is on workers, not in this process."""
        return self.workers is not None or self.address is not None

    def refuse_for(self, command: str) -> None:
        """Raise ConfigError where a command is told to use workers that cannot."""
        if self.is_on:
            key = "address" if self.workers is None else "workers"
            raise ConfigError(f"scale.{key} is set, and palmette {command} runs in one process: leave it out")
