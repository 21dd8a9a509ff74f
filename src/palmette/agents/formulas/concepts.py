"""Formulas by name: random inputs, what palmette's own code makes of them, and what others call the inputs."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palmette.search.strategies.rebase import share
from palmette.train.algorithms.gae import advantage_estimates
from palmette.train.algorithms.statistics import centered, leave_one_out, standardized
from palmette.train.divergence import Estimator, divergence

Inputs = dict[str, Any]
Values = list[float] | list[str]

_GROUP = ("num_generations", "group_size", "n", "k", "g", "group", "n_samples", "rollout_n")
_LOGPS = (
    "logps",
    "per_token_logps",
    "logprobs",
    "log_probs",
    "log_prob",
    "logprob",
    "new_logps",
    "log_pi",
    "policy_logps",
)
_OLD = ("old_logps", "old_per_token_logps", "old_logprobs", "old_log_probs", "old_log_prob", "log_pi_old")
_REFERENCE = (
    "ref_logps",
    "ref_per_token_logps",
    "reference_logprobs",
    "ref_log_probs",
    "ref_log_prob",
    "ref_logprobs",
    "log_pi_ref",
)
_PAD = "<pad>"


@dataclass(frozen=True)
class Concept:
    """A formula: `words` find it by name, `aliases` tell what its inputs are called elsewhere.

    `tolerance` is relative to the largest value: it leaves room for epsilons that differ from library to library.
    """

    words: tuple[str, ...]
    inputs: Callable[[random.Random], Inputs]
    values: Callable[[Inputs], Values]
    aliases: Mapping[str, tuple[str, ...]]
    tolerance: float = 2e-3
    formula: str = ""


def _rewards(chance: random.Random) -> Inputs:
    return {"rewards": [chance.gauss(0, 1) for _ in range(12)], "group": 4}


def _grouped(advantage: Callable[[list[float]], list[float]]) -> Callable[[Inputs], Values]:
    def values(inputs: Inputs) -> Values:
        rewards, size = inputs["rewards"], inputs["group"]
        groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
        return [number for group in groups for number in advantage(group)]

    return values


def _tokens(chance: random.Random) -> Inputs:
    count = 8
    old = [chance.uniform(-4, -0.1) for _ in range(count)]
    return {
        "logps": [value + chance.gauss(0, 0.4) for value in old],
        "old": old,
        "reference": [value + chance.gauss(0, 0.3) for value in old],
        "advantages": [chance.gauss(0, 1) for _ in range(count)],
        "epsilon": 0.2,
    }


def _clipped(inputs: Inputs) -> Values:
    found = []
    for logp, old, advantage in zip(inputs["logps"], inputs["old"], inputs["advantages"], strict=True):
        ratio = math.exp(logp - old)
        low, high = 1 - inputs["epsilon"], 1 + inputs["epsilon"]
        found.append(-min(ratio * advantage, min(max(ratio, low), high) * advantage))
    return found


def _kl(estimator: Estimator) -> Callable[[Inputs], Values]:
    return lambda inputs: [
        divergence(logp, reference, estimator)
        for logp, reference in zip(inputs["logps"], inputs["reference"], strict=True)
    ]


def _logits(chance: random.Random) -> Inputs:
    rows, width = 6, 11
    return {
        "logits": [[[chance.gauss(0, 3) for _ in range(width)] for _ in range(rows)] for _ in range(2)],
        "index": [[chance.randrange(width) for _ in range(rows)] for _ in range(2)],
    }


def _log_probabilities(inputs: Inputs) -> Values:
    found = []
    for logits_TV, index_T in zip(inputs["logits"], inputs["index"], strict=True):
        for row, token in zip(logits_TV, index_T, strict=True):
            top = max(row)
            found.append(row[token] - top - math.log(math.fsum(math.exp(value - top) for value in row)))
    return found


def _scores(chance: random.Random) -> Inputs:
    return {"scores": [chance.random() for _ in range(6)], "width": 16, "temperature": 0.2}


def _allocation(inputs: Inputs) -> Values:
    ranked = sorted(enumerate(inputs["scores"]), key=lambda pair: (-pair[1], pair[0]))
    children = share(ranked, inputs["width"], inputs["temperature"])
    return [float(children.get(place, 0)) for place in range(len(inputs["scores"]))]


def _trajectory(chance: random.Random) -> Inputs:
    count = 7
    numbers = {name: [chance.gauss(0, 1) for _ in range(count)] for name in ("rewards", "values")}
    return {**numbers, "gamma": 0.98, "decay": 0.95}


def _gae(inputs: Inputs) -> Values:
    gamma, decay = inputs["gamma"], inputs["decay"]
    advantages, _ = advantage_estimates(inputs["rewards"], inputs["values"], discount=gamma, decay=decay)
    return list(advantages)


def _texts(chance: random.Random) -> Inputs:
    numbers = [chance.randrange(100) for _ in range(4)]
    texts = [f"{number} + 1 = {number + 1}{_PAD * place}" for place, number in enumerate(numbers)]
    return {"texts": [*texts, f"<think>so</think> {numbers[0]}{_PAD}"], "pad": _PAD}


def _decoded(inputs: Inputs) -> Values:
    return [text.replace(inputs["pad"], "") for text in inputs["texts"]]


_REWARD_NAMES = {"rewards": ("rewards", "r", "reward", "scores", "returns"), "group": _GROUP}
_TOKEN_NAMES = {
    "logps": _LOGPS,
    "old": _OLD,
    "reference": _REFERENCE,
    "advantages": ("advantages", "advantage", "adv", "a"),
    "epsilon": (
        "epsilon",
        "eps",
        "clip",
        "clip_eps",
        "epsilon_low",
        "epsilon_high",
        "clip_ratio",
        "cliprange",
        "clip_range",
    ),
}

CONCEPTS: dict[str, Concept] = {
    "log-probability": Concept(
        ("log", "prob", "logprob", "probability", "softmax", "logps", "selective", "logits"),
        _logits,
        _log_probabilities,
        {
            "logits": ("logits", "scores", "x"),
            "index": ("index", "ids", "input_ids", "labels", "tokens", "token_ids", "targets"),
        },
        1e-4,
        "logit of the token - logsumexp of all logits",
    ),
    "advantage": Concept(
        ("advantage", "grpo", "normalization", "group", "z", "score"),
        _rewards,
        _grouped(lambda group: standardized(group, 1e-4)),
        _REWARD_NAMES,
        5e-3,
        "(r - mean) / (std + 1e-4) within a group, std with n - 1",
    ),
    "dr-grpo-advantage": Concept(
        ("dr", "centered", "unscaled"), _rewards, _grouped(centered), _REWARD_NAMES, 1e-4, "r - mean"
    ),
    "rloo-advantage": Concept(
        ("rloo", "leave", "one", "out"),
        _rewards,
        _grouped(leave_one_out),
        _REWARD_NAMES,
        1e-4,
        "r - mean of the others",
    ),
    "loss": Concept(
        ("loss", "ppo", "clipped", "surrogate", "policy", "objective"),
        _tokens,
        _clipped,
        _TOKEN_NAMES,
        1e-4,
        "-min(ratio A, clip(ratio, 1 - 0.2, 1 + 0.2) A)",
    ),
    "kl-k1": Concept(("k1",), _tokens, _kl("k1"), _TOKEN_NAMES, 1e-4, "log policy - log reference"),
    "kl-k2": Concept(("k2",), _tokens, _kl("k2"), _TOKEN_NAMES, 1e-4, "(log policy - log reference)^2 / 2"),
    "kl-k3": Concept(
        ("k3", "kl", "divergence", "penalty"),
        _tokens,
        _kl("k3"),
        _TOKEN_NAMES,
        1e-4,
        "exp(d) - d - 1, d = log reference - log policy",
    ),
    "allocation": Concept(
        ("allocation", "rebase", "children", "width", "share"),
        _scores,
        _allocation,
        {
            "scores": ("scores", "rewards", "values"),
            "width": ("width", "n", "budget", "num_children", "total"),
            "temperature": ("temperature", "tau", "temp"),
        },
        1e-6,
        "from best to worst ceil(children left x weight / weights left), weights softmax(score / 0.2)",
    ),
    "gae": Concept(
        ("gae", "generalized", "lambda"),
        _trajectory,
        _gae,
        {
            "rewards": ("rewards", "r"),
            "values": ("values", "v"),
            "gamma": ("gamma", "discount"),
            "decay": ("lam", "lambda_", "lmbda", "gae_lambda", "decay"),
        },
        1e-4,
        "sum of (gamma lambda)^k delta, delta = r + gamma V' - V, V' = 0 at the end",
    ),
    "decode": Concept(
        ("decode", "strip", "padding", "completion", "text"),
        _texts,
        _decoded,
        {
            "texts": (
                "inputs",
                "texts",
                "text",
                "completions",
                "ids",
                "input_ids",
                "completion_ids",
                "outputs",
                "tokens",
            ),
            "pad": ("pad", "pad_token"),
        },
        0.0,
        "the decoded text without padding; the reasoning before </think> may be taken away, nothing else",
    ),
}


def find_concept(name: str) -> str | None:
    """Return the concept that a name means, by its words, in the plural too; None for none."""
    words = "".join(c if c.isalnum() else " " for c in name.lower()).split()
    if "-".join(words) in CONCEPTS:
        return "-".join(words)
    wanted = {form for word in words if len(word) > 1 for form in (word, word.removesuffix("s"))}
    found = {id: len(wanted & {*concept.words, *id.split("-")}) for id, concept in CONCEPTS.items()}
    best = max(found, key=lambda id: found[id])
    return best if found[best] else None
