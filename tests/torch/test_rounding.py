"""How far rounding alone moves weights: what ranks and micro-batches differ by, and why Adam makes more of it.

Adam divides a gradient by its own size: of a gradient that is next to nothing it makes a step like any other, and of
the rounding in it a share of that step. Weights that were large before hide this. An adapter's second half begins with
zeros, and after an update it consists of nothing but such steps.
"""

from dataclasses import replace

import pytest
import torch

from tests.ranks import ADAM, furthest, plain_learner, ranks_learner, trained
from tests.torch.test_ranks import TOKENS, samples

WIDER = 5 * TOKENS
"""Another size of micro-batches: the same sums in another order."""


def differ(method: str, learning_rate: float = 1e-4) -> float:
    """Return how far weights are apart after 3 updates in one process by micro-batches of two sizes."""
    one, other = (plain_learner(method, replace(ADAM, learning_rate=learning_rate)) for _ in range(2))
    for update in range(3):
        one.update(samples(update), micro_batch_tokens=TOKENS)
        other.update(samples(update), micro_batch_tokens=WIDER)
    return furthest(one.model, other.model)


def test_ranks_train_an_adapter_from_zeros_as_one_process_does_where_nothing_is_rounded() -> None:
    plain = plain_learner("zero64")
    with ranks_learner(2, "zero64") as (learner, model, _):
        for update in range(3):
            plain.update(samples(update), micro_batch_tokens=TOKENS)
            learner.update(samples(update), micro_batch_tokens=TOKENS)
        learner.fetch()
    assert furthest(model, plain.model) < 1e-10


@pytest.mark.parametrize("method", ["zero", "full"])
def test_micro_batches_move_weights_by_rounding_alone(method: str) -> None:
    assert differ(f"{method}64", 1e-2) < 1e-10
    assert differ(method) < (1e-2 if method == "zero" else 1e-5)


def test_a_step_differs_as_much_as_the_gradient_is_uncertain() -> None:
    """After one update a weight of the half that was zeros is the step itself, which Adam makes as g / (|g| + eps)."""
    one, other = plain_learner("zero"), plain_learner("zero")
    one.update(samples(0), micro_batch_tokens=TOKENS)
    other.update(samples(0), micro_batch_tokens=WIDER)
    states, weights = (one.state_dict(), other.state_dict()), (trained(one.model), trained(other.model))
    for name in (name for name in weights[0] if "lora_B" in name):
        first, second = (state[f"optimizer.{name}.exp_avg"].double() / 0.1 for state in states)
        steps = [gradient / (gradient.abs() + ADAM.eps) for gradient in (first, second)]
        predicted = ADAM.learning_rate * (steps[0] - steps[1]).abs()
        found = (weights[0][name] - weights[1][name]).double().abs()
        # Steps themselves are rounded, to a few parts in a million of the largest.
        torch.testing.assert_close(found, predicted, rtol=0.01, atol=5e-6 * ADAM.learning_rate)
