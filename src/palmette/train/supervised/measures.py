"""How well values tell right steps from wrong ones: accuracy, the area under the curve, cross-entropy."""

import math
from collections.abc import Sequence


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Return the chance that a right step scores above a wrong one; ties count half. None without both kinds."""
    ranked = sorted(zip(scores, labels, strict=True))
    wrong_below, wins, place = 0, 0.0, 0
    while place < len(ranked):
        end = place
        while end < len(ranked) and ranked[end][0] == ranked[place][0]:
            end += 1
        right = sum(label for _, label in ranked[place:end])
        wrong = end - place - right
        wins += right * (wrong_below + wrong / 2)
        wrong_below += wrong
        place = end
    rights = sum(labels)
    pairs = rights * (len(labels) - rights)
    return wins / pairs if pairs else None


def step_measures(logits: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    """Return loss, accuracy and, if there are right and wrong steps, AUC. A step of label 0.5 or more is right."""
    right = [label >= 0.5 for label in labels]
    found = {
        "loss": sum(map(_cross_entropy, logits, labels)) / len(labels),
        "accuracy": sum((logit >= 0) == is_right for logit, is_right in zip(logits, right, strict=True)) / len(labels),
        "right_share": sum(right) / len(labels),
    }
    area = auc(logits, right)
    return found if area is None else {**found, "auc": area}


def _cross_entropy(logit: float, label: float) -> float:
    return max(logit, 0.0) - logit * label + math.log1p(math.exp(-abs(logit)))
