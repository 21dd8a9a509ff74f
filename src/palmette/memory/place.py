"""Which role sits on which device."""

from collections.abc import Sequence
from dataclasses import dataclass

from palmette.errors import ConfigError
from palmette.memory.devices import Device, host_of
from palmette.memory.job import Job
from palmette.memory.lines import Fired
from palmette.memory.rules import fire


@dataclass(frozen=True)
class Placement:
    """The device of each role, with the rules that put it there. A role that is not there has None."""

    policy: Device
    reward: Device | None
    embedder: Device | None
    host: Device
    rules: tuple[Fired, ...]

    def roles_on(self, device: Device) -> tuple[str, ...]:
        """Return the roles that sit on a device."""
        seats = {"policy": self.policy, "reward": self.reward, "embedder": self.embedder}
        return tuple(role for role, seat in seats.items() if seat == device)


def place(job: Job, devices: Sequence[Device]) -> Placement:
    """Give every role a device: those named by settings, then by rule.

    Raises ConfigError for a device that is not there, or an embedder away from the reward model.
    """
    gpus = [device for device in devices if device.kind == "cuda"]
    host = host_of(devices)
    rules: list[Fired] = []
    reward_named = None if job.reward is None else _named(job.reward.device, "reward.device", gpus, host)
    policy = _named(job.policy.device, "policy.device", gpus, host)
    if policy is None:
        policy = next((gpu for gpu in gpus if gpu != reward_named), gpus[0] if gpus else host)
    reward = None
    if job.reward is not None:
        reward = reward_named or next((gpu for gpu in gpus if gpu != policy), gpus[0] if gpus else host)
        if reward == policy:
            rules.append(fire("share-by-phase", f"all roles share {policy}"))
        else:
            rules.append(fire("policy-alone", f"policy on {policy.name}, reward on {reward.name}"))
    embedder = None
    if job.embedder is None:
        rules.append(fire("no-embedder", "no embedder is loaded"))
    else:
        embedder = _embedder_seat(job, reward or policy, gpus, host, rules)
    return Placement(policy, reward, embedder, host, tuple(rules))


def _embedder_seat(job: Job, right: Device, gpus: list[Device], host: Device, rules: list[Fired]) -> Device:
    assert job.embedder is not None
    named = _named(job.embedder.device, "embedder.device", gpus, host)
    if named is None or named == right:
        rules.append(fire("embedder-with-reward", f"embedder on {right.name}"))
        return right
    if not job.any_embed_device:
        raise ConfigError(
            f"embedder.device {named.name} is not the reward model's device: set embedder.device to {right.name} "
            f"(--embed_device {right.name}), or keep it with --any-embed-device"
        )
    rules.append(fire("embed-device-overridden", f"embedder on {named.name}, reward on {right.name}"))
    return named


def _named(name: str, key: str, gpus: list[Device], host: Device) -> Device | None:
    """Return the device that a setting names, None for auto."""
    if name == "auto":
        return None
    if name == "cpu":
        return host
    wanted = "cuda:0" if name == "cuda" else name
    found = next((gpu for gpu in gpus if gpu.name == wanted), None)
    if found is None:
        there = ", ".join([*(gpu.name for gpu in gpus), host.name])
        raise ConfigError(f"{key} is {name}, and there is no such device: set {key} to one of {there}")
    return found
