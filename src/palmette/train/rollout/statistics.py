"""The numbers of one update, and a few of its responses for people to read."""

import statistics
from collections.abc import Mapping, Sequence

from palmette.events import ShownSample
from palmette.train.rollout.groups import Group
from palmette.train.samples import Sample
from palmette.train.update.update_result import UpdateResult

SHOWN_GROUPS = 2
SHOWN_RESPONSES = 4
_LONGEST_TEXT = 4000


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
    return numbers


def shown_samples(groups: Sequence[Group], samples: Sequence[Sample]) -> tuple[ShownSample, ...]:
    """Return the first few responses of the first few groups, with the mean advantage of their tokens."""
    by_group: dict[object, list[Sample]] = {}
    for sample in samples:
        by_group.setdefault(sample.group, []).append(sample)
    shown: list[ShownSample] = []
    for group in groups[:SHOWN_GROUPS]:
        known = _advantages(group, by_group.get(group.result.question.id, []))
        prompt = group.result.question.messages[-1]["content"][:_LONGEST_TEXT]
        for place, response in enumerate(group.responses[:SHOWN_RESPONSES]):
            parts = {name: values[place] for name, values in group.parts.items()}
            shown.append(
                ShownSample(
                    response.question.id,
                    prompt,
                    response.text[:_LONGEST_TEXT],
                    group.rewards[place],
                    known.get(response.leaf),
                    response.is_cut,
                    parts,
                )
            )
    return tuple(shown)


def _advantages(group: Group, samples: Sequence[Sample]) -> Mapping[int, float]:
    """Return the mean advantage of the tokens of each response that samples are of, by its leaf."""
    tree = group.result.tree
    prompt = len(tree.prompt_tokens)
    known: dict[int, float] = {}
    for response in group.responses:
        path = (*tree.prompt_tokens, *response.tokens)
        told = [0.0] * len(response.tokens)
        counted = [False] * len(response.tokens)
        for sample in samples:
            first, last = len(sample.prompt) - prompt, len(sample.prompt) - prompt + len(sample.response)
            if (*sample.prompt, *sample.response) == path[: prompt + last]:
                told[first:last] = sample.advantages
                counted[first:last] = [True] * (last - first)
        if any(counted):
            known[response.leaf] = sum(told) / sum(counted)
    return known
