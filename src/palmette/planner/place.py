"""Which role runs on which device, by rules that each name their reason and their source."""

from collections.abc import Sequence
from dataclasses import dataclass

from palmette.errors import ConfigError
from palmette.planner.devices import Device, host_of
from palmette.planner.job import Job
from palmette.planner.lines import Fired

ETS_README = "ETS release, README.md, 'ETS Scripts' (github.com/SqueezeAILab/ETS)"
ETS_REWARD = "ETS release, scripts/run_reward.sh (github.com/SqueezeAILab/ETS)"
HOUSE = "palmette, docs/plan.md"


@dataclass(frozen=True)
class Rule:
    """Why a plan is as it is."""

    reason: str
    source: str

    def fired(self, id: str, decision: str) -> Fired:
        """Return the rule with what it decided."""
        return Fired(id, decision, self.reason, self.source)


RULES = {
    "policy-alone": Rule(
        "its KV cache serves every active branch, so what is left of its device bounds the search", ETS_README
    ),
    "embedder-with-reward": Rule(
        "scoring needs little KV, and the embedder runs once per allocation, when the reward model waits", ETS_README
    ),
    "reward-fraction": Rule(
        "the embedder's weights, its activations and a margin have to stay outside the reward server's static share",
        ETS_REWARD,
    ),
    "no-embedder": Rule("without a diversity term no step is embedded", "ETS, arXiv 2502.13575"),
    "share-by-phase": Rule(
        "weights and caches of all roles stay; inside one process one role computes at a time, and activations do not "
        "add up; servers each keep theirs",
        HOUSE,
    ),
    "inference-share": Rule("forward passes repeat their sizes; the rest is for what no formula counts", HOUSE),
    "training-share": Rule("backward passes allocate in sizes that repeat less, so more of a heap lies in gaps", HOUSE),
    "reference-on-host": Rule(
        "the reference policy is read once an update and never trained; its weights would take the room of activations",
        HOUSE,
    ),
    "embed-device-overridden": Rule("the setting memory.any_embed_device allows it", HOUSE),
}


def fire(id: str, decision: str) -> Fired:
    """Return a rule by its id with what it decided."""
    return RULES[id].fired(id, decision)


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
        allocations = {"policy": self.policy, "reward": self.reward, "embedder": self.embedder}
        return tuple(role for role, allocation in allocations.items() if allocation == device)


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
        embedder = _embedder_device(job, reward or policy, gpus, host, rules)
    return Placement(policy, reward, embedder, host, tuple(rules))


def _embedder_device(job: Job, right: Device, gpus: list[Device], host: Device, rules: list[Fired]) -> Device:
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
