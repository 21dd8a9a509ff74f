"""The rules of placement and of fractions: each with its reason and where it comes from."""

from dataclasses import dataclass

from palmette.memory.lines import Fired

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
