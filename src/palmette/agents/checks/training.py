"""Checks of a training config: groups, sampling, losses, learning rates, tests."""

import math

from palmette import registry
from palmette.agents.checks.verdict import Verdict, broken, kept
from palmette.agents.subject import Subject
from palmette.errors import PalmetteError
from palmette.planner.models.find_shape import find_shape

_PRUNES = ("beam", "dvts", "rebase", "ets", "espalier")


def group_size(subject: Subject) -> Verdict | None:
    """Algorithms that compare responses have at least two of them to a question."""
    config = subject.training
    if config is None:
        return None
    least = getattr(registry.find("algorithm", config.train.algorithm), "least_group", 1)
    if config.search.width < least:
        return broken(
            f"search.width is {config.search.width}, and {config.train.algorithm} compares at least {least} responses",
            "search.width 8",
        )
    return kept(f"{config.search.width} responses to a question")


def whole_distribution(subject: Subject) -> Verdict | None:
    """Rollouts of training are sampled from the whole distribution."""
    config = subject.training
    told = subject.foreign
    if config is not None:
        policy = config.policy
        cuts = {
            "policy.top_p": policy.top_p < 1,
            "policy.top_k": policy.top_k is not None,
            "policy.min_p": policy.min_p > 0,
        }
    elif {"top_p", "top_k", "min_p"} & told.keys():
        cuts = {
            "top_p": (told.get("top_p") or 1) < 1,
            "top_k": (told.get("top_k") or 0) > 0,
            "min_p": bool(told.get("min_p")),
        }
    else:
        return None
    named = [key for key, is_cut in cuts.items() if is_cut]
    if named:
        return broken(
            f"{', '.join(named)}: tokens that are cut are never sampled, and ratios do not correct for that",
            f"{named[0]} off",
        )
    return kept("rollouts are sampled from the whole distribution")


def prunes_nothing(subject: Subject) -> Verdict | None:
    """Trees to learn from keep every branch."""
    config = subject.training
    if config is None:
        return None
    if config.search.strategy in _PRUNES:
        return broken(f"search.strategy is {config.search.strategy}, which prunes", "search.strategy fixed_tree")
    return kept(f"{config.search.strategy} prunes nothing")


def learning_rate(subject: Subject, large: float, most_large: float, least_lora: float) -> Verdict | None:
    """Learning rates fit the number of weights that learn: low for all of a large model, higher for adapters."""
    config = subject.training
    if config is None:
        return None
    rate = config.train.learning_rate
    if config.train.method == "lora":
        if rate < least_lora:
            return broken(
                f"train.learning_rate is {rate:g} with LoRA, below {least_lora:g}",
                f"train.learning_rate {least_lora:g}",
            )
        return kept(f"train.learning_rate is {rate:g} with LoRA")
    try:
        parameters = find_shape(config.policy.model, may_build=False).parameters
    except PalmetteError:
        return None
    if parameters > large and rate > most_large:
        return broken(
            f"train.learning_rate is {rate:g} for all of {parameters / 1e9:.1f} G weights, above {most_large:g}",
            f"train.learning_rate {most_large:g}",
        )
    return kept(f"train.learning_rate is {rate:g} for {parameters / 1e6:.0f} M weights")


def clip_range(subject: Subject, sequence_most: float, token_most: float) -> Verdict | None:
    """The clip is that of the algorithm's kind of ratio: of a token or of a whole response."""
    config = subject.training
    if config is None or "clip_high" not in config.train.options:
        return None
    most = sequence_most if config.train.algorithm == "gspo" else token_most
    high = config.train.options["clip_high"]
    if high > most:
        return broken(
            f"train.clip_high is {high:g}, above {most:g} for {config.train.algorithm}", f"train.clip_high {most:g}"
        )
    return kept(f"train.clip_high is {high:g}")


def kl_estimator(subject: Subject) -> Verdict | None:
    """k1 stands in the reward: in the loss its gradient is 0 on average."""
    config = subject.training
    if config is None or not config.train.uses_reference:
        return None
    estimator, place = config.train.options.get("kl"), config.train.options.get("kl_in")
    if estimator == "k1" and place == "loss":
        return broken("train.kl is k1 in the loss", "train.kl k3")
    return kept(f"train.kl is {estimator} in the {place}")


def option_between(subject: Subject, algorithm: str, key: str, least: float, most: float) -> Verdict | None:
    """A setting of one algorithm is in the range in which it means what its source means; `any` is every algorithm."""
    config = subject.training
    if config is None or algorithm not in ("any", config.train.algorithm) or key not in config.train.options:
        return None
    value = config.train.options[key]
    if not least <= value <= most:
        return broken(
            f"train.{key} is {value:g}, not between {least:g} and {most:g}",
            f"train.{key} {_nearest(value, least, most):g}",
        )
    return kept(f"train.{key} is {value:g}")


def _nearest(value: float, least: float, most: float) -> float:
    return least if value < least else most


def enough_tests(subject: Subject, error: float) -> Verdict | None:
    """Evaluations ask enough questions to tell a difference."""
    config = subject.training
    if config is None or not config.train.eval_every:
        return None
    count = config.train.eval_questions
    found, needed = math.sqrt(0.25 / count), math.ceil(0.25 / error**2)
    if found > error:
        return broken(
            f"{count} test questions have a standard error of up to {found:.2f}", f"train.eval_questions {needed}"
        )
    return kept(f"{count} test questions have a standard error of at most {found:.2f}")


def checkpoints_often(subject: Subject) -> Verdict | None:
    """A run that is killed has a checkpoint to go on from."""
    config = subject.training
    if config is None:
        return None
    every, updates = config.train.checkpoint_every, config.train.updates
    if updates > 10 and every >= updates:
        return broken(
            f"train.checkpoint_every is {every} in {updates} updates: one that is killed starts anew",
            "train.checkpoint_every 10",
        )
    return kept(f"a checkpoint every {every} updates")


def kv_weight(subject: Subject) -> Verdict | None:
    """The weight of ETS's memory is above 1 and below that of diversity."""
    config = subject.config
    if config is None or config.search.strategy != "ets":
        return None
    weight = config.search.options.get("lambda_kv", 1.25)
    diversity = config.search.options.get("lambda_diversity")
    most = 1.5 if diversity is None else diversity
    if not 1 < weight <= most and diversity != 0 and weight != 0:
        return broken(
            f"search.lambda_kv is {weight:g}, not above 1 and below the weight of diversity ({most:g})",
            "search.lambda_kv 1.25",
        )
    return kept(f"search.lambda_kv is {weight:g}")
