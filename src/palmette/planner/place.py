"""Which role runs on which device, by rules that each state their reason and their source."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from palmette.errors import ConfigError
from palmette.planner.devices import Device, host_of
from palmette.planner.job import Job
from palmette.planner.lines import AppliedRule

ETS_README = "ETS release, README.md, 'ETS Scripts' (github.com/SqueezeAILab/ETS)"
ETS_REWARD = "ETS release, scripts/run_reward.sh (github.com/SqueezeAILab/ETS)"
HOUSE = "palmette, docs/plan.md"


@dataclass(frozen=True)
class Rule:
    """Why a plan is as it is, and who says so."""

    reason: str
    source: str


RULES = {
    "policy-alone": Rule(
        "its KV cache serves every active branch, so what is left of its device bounds the search", ETS_README
    ),
    "embedder-with-reward": Rule(
        "scoring needs little KV, and the embedder runs once per wave, when the reward model waits", ETS_README
    ),
    "reward-fraction": Rule(
        "the embedder's weights, its activations and a margin have to stay outside the reward server's fraction",
        ETS_REWARD,
    ),
    "no-embedder": Rule("without a diversity term no step is embedded", "ETS, arXiv 2502.13575"),
    "share-by-phase": Rule(
        "weights and caches of all roles stay; inside one process one role computes at a time, so activations do not "
        "add up; servers each keep theirs",
        HOUSE,
    ),
    "tensor-parallel": Rule(
        "weights and one path's KV do not fit one of them; each holds a share of every matrix and of the key heads",
        HOUSE,
    ),
    "inference-share": Rule("forward passes repeat their sizes; the rest is for what no formula counts", HOUSE),
    "training-share": Rule(
        "backward passes allocate in sizes that repeat less, so more of a heap is lost to gaps", HOUSE
    ),
    "reference-on-host": Rule(
        "the reference policy is read once per update and never trained; its weights would take the place of "
        "activations",
        HOUSE,
    ),
    "embed-device-overridden": Rule("the setting memory.any_embed_device allows it", HOUSE),
}


def apply_rule(id: str, decision: str) -> AppliedRule:
    """Return a rule by its id, with what it decided in this plan."""
    return AppliedRule(id, decision, RULES[id].reason, RULES[id].source)


@dataclass(frozen=True)
class Placement:
    """The device of each role, None for a role that is not needed, with the rules that decided."""

    policy: Device
    reward: Device | None
    embedder: Device | None
    host: Device
    rules: tuple[AppliedRule, ...]
    groups: dict[str, tuple[Device, ...]] = field(default_factory=dict)
    """All devices of a role whose model is cut for several of them."""

    def devices_of(self, role: str) -> tuple[Device, ...]:
        """Return the devices of a role: one, several where its model is cut, or none."""
        own = {"policy": self.policy, "reward": self.reward, "embedder": self.embedder}[role]
        return self.groups.get(role, () if own is None else (own,))

    def roles_on(self, device: Device) -> tuple[str, ...]:
        """Return the roles that run on a device."""
        return tuple(role for role in ("policy", "reward", "embedder") if device in self.devices_of(role))


def place(job: Job, devices: Sequence[Device]) -> Placement:
    """Choose a device for every role: the one its setting names, or else by rule.

    Raises ConfigError for a device that is not there, or an embedder on another device than the reward model's.
    """
    gpus = [device for device in devices if device.kind == "cuda"]
    host = host_of(devices)
    rules: list[AppliedRule] = []
    reward_named = None if job.reward is None else _named_device(job.reward.device, "reward.device", gpus, host)
    policy = _named_device(job.policy.device, "policy.device", gpus, host)
    if policy is None:
        policy = next((gpu for gpu in gpus if gpu != reward_named), gpus[0] if gpus else host)
    groups = {"policy": _group(policy, job.policy.shards, gpus, (reward_named,))} if job.policy.shards > 1 else {}
    taken = groups.get("policy", (policy,))
    reward = None
    if job.reward is not None:
        reward = reward_named or next((gpu for gpu in gpus if gpu not in taken), gpus[0] if gpus else host)
        if job.reward.shards > 1:
            groups["reward"] = _group(reward, job.reward.shards, gpus, taken)
        if groups and reward in taken:
            raise ConfigError(f"reward.device {reward.name} is one of the devices that the policy is cut for")
        if reward == policy:
            rules.append(apply_rule("share-by-phase", f"all roles share {policy}"))
        else:
            rules.append(apply_rule("policy-alone", f"policy on {policy.name}, reward on {reward.name}"))
    embedder = None
    if job.embedder is None:
        rules.append(apply_rule("no-embedder", "no embedder is loaded"))
    else:
        embedder = _embedder_device(job, reward or policy, gpus, host, rules)
    for role, devices in groups.items():
        named = ", ".join(device.name for device in devices)
        rules.append(apply_rule("tensor-parallel", f"{role} cut for {len(devices)} devices: {named}"))
    return Placement(policy, reward, embedder, host, tuple(rules), groups)


def _group(first: Device, count: int, gpus: list[Device], taken: Sequence[Device | None]) -> tuple[Device, ...]:
    """Return so many GPUs of one size with about as much free, the first one among them.

    SGLang refuses to start where one of them has a tenth less free than another. Raises ConfigError where there are
    not enough.
    """
    others = [
        gpu for gpu in gpus
        if gpu.total_bytes == first.total_bytes and gpu != first and gpu not in taken
        and 0.9 * _free(first) <= _free(gpu) <= _free(first) / 0.9
    ]  # fmt: skip
    if first.kind != "cuda" or first in taken or len(others) < count - 1:
        raise ConfigError(f"there are not {count} GPUs like {first.name} to cut a model for")
    return (first, *others[: count - 1])


def _free(device: Device) -> int:
    return device.free_bytes if device.free_bytes is not None else device.total_bytes or 0


def _embedder_device(
    job: Job, reward_device: Device, gpus: list[Device], host: Device, rules: list[AppliedRule]
) -> Device:
    """Return the reward model's device, or another one where the settings name and allow it; add the rule applied."""
    assert job.embedder is not None
    named = _named_device(job.embedder.device, "embedder.device", gpus, host)
    if named is None or named == reward_device:
        rules.append(apply_rule("embedder-with-reward", f"embedder on {reward_device.name}"))
        return reward_device
    if not job.any_embed_device:
        raise ConfigError(
            f"embedder.device {named.name} is not the reward model's device: set embedder.device to "
            f"{reward_device.name} (--embed_device {reward_device.name}), or keep it with --any-embed-device"
        )
    rules.append(apply_rule("embed-device-overridden", f"embedder on {named.name}, reward on {reward_device.name}"))
    return named


def _named_device(name: str, key: str, gpus: list[Device], host: Device) -> Device | None:
    """Return the device that a setting names, None for auto. Raises ConfigError where there is no such device."""
    if name == "auto":
        return None
    if name == "cpu":
        return host
    wanted = "cuda:0" if name == "cuda" else name
    found = next((gpu for gpu in gpus if gpu.name == wanted), None)
    if found is None:
        present = ", ".join([*(gpu.name for gpu in gpus), host.name])
        raise ConfigError(f"{key} is {name}, and there is no such device: set {key} to one of {present}")
    return found
