"""A reward in TRL's signature for sums: 1 if the last whole number of a completion is the answer."""

import re
from typing import Any


def last_number_is_right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Return the reward of each completion."""
    rewards = []
    for completion, right in zip(completions, answer, strict=True):
        found = re.findall(r"-?\d+", completion[0]["content"])
        rewards.append(float(bool(found) and found[-1] == right.strip()))
    return rewards
