"""Ranks as actors of a Ray cluster: placed together or refused, called through Ray, named when they are lost."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from palmette.errors import BackendError, PalmetteError
from palmette.scale.learning.rank import Place, Rank
from palmette.scale.learning.rank_process import answered
from palmette.scale.learning.ranks import OTHERS_SECONDS, RankLostError, first_failure, named
from palmette.scale.learning.weight_parcel import Parcel
from palmette.units import describe_error, format_bytes, format_seconds


@dataclass(frozen=True)
class RankDemand:
    """What Ray gives to each rank."""

    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0

    @property
    def bundle(self) -> dict[str, float]:
        """The same in Ray's words."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory_bytes)}
        return {name: amount for name, amount in wanted.items() if amount}


class _Actor:
    """What runs in an actor: a rank that answers one call at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rank = Rank(place)

    def answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call a method of the rank. Weights are returned as numpy arrays: Ray hands these over without a copy."""
        is_returned, value = answered(self._rank, self._place, method, arguments)
        if isinstance(value, Parcel):
            value = replace(value, content=value.content.numpy())
        return is_returned, value


class RayRanks:
    """Actors in one placement group: all of them or none. `ray` is the module, connected; `stack` ends that.

    Raises BackendError if there is no room for them within `start_seconds`, with what there is.
    """

    def __init__(
        self,
        ray: Any,
        count: int,
        demand: RankDemand,
        *,
        threads: int,
        start_seconds: float,
        answer_seconds: float,
        stack: ExitStack,
    ) -> None:
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.count = count
        self._ray = ray
        self._stack = stack
        self._start_seconds, self._answer_seconds = start_seconds, answer_seconds
        self._has_built = False
        self._actors: list[Any] = []
        with ExitStack() as failing:
            failing.callback(self.close)
            group = placement_group([demand.bundle] * count, strategy="PACK")
            self._stack.callback(remove_placement_group, group)
            if not group.wait(start_seconds):
                raise BackendError(
                    f"the cluster did not give {count} ranks {_told(demand.bundle)} each within "
                    f"{format_seconds(start_seconds)} (scale.start_seconds): it has {_told(ray.cluster_resources())}, "
                    f"free are {_told(ray.available_resources())}"
                )
            device = "cuda:0" if demand.gpus else "cpu"  # Ray shows each actor its own GPU as the first.
            for rank in range(count):
                options = {
                    "num_cpus": demand.cpus,
                    "num_gpus": demand.gpus,
                    "max_restarts": 0,
                    "scheduling_strategy": PlacementGroupSchedulingStrategy(group, rank),
                }
                place = Place(rank, count, threads, device, answer_seconds)
                self._actors.append(ray.remote(_Actor).options(**options).remote(place))
            failing.pop_all()

    def call(self, method: str, *arguments: Any, only: Sequence[int] | None = None) -> list[Any]:
        """See `Ranks.call`."""
        asked = list(range(self.count)) if only is None else list(only)
        shared = self._ray.put(arguments)  # Once for all ranks.
        pending = {self._actors[rank].answer.remote(method, shared): rank for rank in asked}
        seconds = self._answer_seconds if self._has_built else max(self._start_seconds, self._answer_seconds)
        until = time.monotonic() + seconds
        returned: dict[int, Any] = {}
        failed: dict[int, PalmetteError] = {}
        while pending:
            ready, _ = self._ray.wait(list(pending), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise first_failure(failed, pending.values(), self.count, method, seconds)
            rank = pending.pop(ready[0])
            is_returned, value = self._value(ready[0], rank, method)
            (returned if is_returned else failed)[rank] = value
            if failed:
                until = min(until, time.monotonic() + OTHERS_SECONDS)
        if failed:
            raise failed[min(failed)]
        self._has_built |= method == "build"
        return [returned[rank] for rank in asked]

    def _value(self, reference: Any, rank: int, method: str) -> tuple[bool, Any]:
        try:
            is_returned, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            told = describe_error(error)
            raise RankLostError(f"{named([rank], self.count)} is lost in '{method}': {told}") from error
        return is_returned, value

    def close(self) -> None:
        """End the actors and give back their place. Safe to call twice."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self._stack.close()


def _told(resources: dict[str, float]) -> str:
    told = [f"{resources[name]:g} {kind}" for name, kind in (("CPU", "cores"), ("GPU", "GPUs")) if name in resources]
    told += [format_bytes(int(resources["memory"]))] if "memory" in resources else []
    return ", ".join(told) or "nothing"
