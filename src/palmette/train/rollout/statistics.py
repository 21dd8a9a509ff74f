"""The numbers of one update."""

import statistics
from collections.abc import Mapping, Sequence

from palmette.train.rollout.groups import Group
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult


def statistics_of(
    groups: Sequence[Group],
    samples: Sequence[Sample],
    results: Sequence[UpdateResult],
    seconds: Mapping[str, float],
) -> dict[str, float]:
    """Return the statistics of one update by name.

    Those of optimizer steps are means over the steps; they are missing if no step was made. Ratios are those of the
    first step, where the policy has not changed since it generated the samples. `seconds` are those of each phase:
    tokens a second are generated tokens by the seconds of the rollout, judging included.
    """
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    responses = [response for group in groups for response in group.responses]
    numbers = {
        "reward": statistics.fmean(rewards) if rewards else 0.0,
        "reward_std": statistics.pstdev(rewards) if rewards else 0.0,
        "signal_share": sum(group.has_signal for group in groups) / max(1, len(groups)),
        "cut_share": sum(response.is_cut for response in responses) / max(1, len(responses)),
        "response_tokens": statistics.fmean(len(response.tokens) for response in responses) if responses else 0.0,
        "generated_tokens": float(sum(group.result.tokens for group in groups)),
        "responses": float(len(responses)),
        "unrewarded": float(sum(reward is None for group in groups for reward in group.rewards)),
        "samples": float(len(samples)),
        "steps": float(len(results)),
    }
    if seconds.get("rollout"):
        numbers["tokens_per_second"] = numbers["generated_tokens"] / seconds["rollout"]
    for name in groups[0].parts if groups and len(groups[0].parts) > 1 else ():
        told = [value for group in groups for value in group.parts[name] if value is not None]
        numbers[f"reward {name}"] = statistics.fmean(told) if told else 0.0
    if results:
        for name in ("loss", "kl", "clipped_share", "entropy", "gradient_norm"):
            numbers[name] = statistics.fmean(getattr(result, name) for result in results)
        first = results[0]
        numbers |= {"ratio_low": first.ratio_low, "ratio": first.ratio_mean, "ratio_high": first.ratio_high}
    critics = [result.critic for result in results if result.critic is not None]
    if critics:
        numbers["value_loss"] = statistics.fmean(critic.loss for critic in critics)
        numbers["critic_gradient_norm"] = statistics.fmean(critic.gradient_norm for critic in critics)
    return numbers | _value_statistics(samples)


def _value_statistics(samples: Sequence[Sample]) -> dict[str, float]:
    """Return how much of the spread of returns the critic foresaw: 1 all of it, 0 no more than their mean would."""
    pairs = [
        (value, reached)
        for sample in samples
        if sample.old_values is not None and sample.returns is not None
        for value, reached in zip(sample.counted(sample.old_values), sample.counted(sample.returns), strict=True)
    ]
    spread = statistics.pvariance([reached for _, reached in pairs]) if pairs else 0.0
    if not spread:
        return {}
    return {"value_explained": 1 - statistics.pvariance([reached - value for value, reached in pairs]) / spread}
