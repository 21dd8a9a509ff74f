"""The peak of an update that has not run: the learner itself, on fake tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from palmette.memory.tracker import OPTIMIZER, Prediction, Tracker, fill_with_fakes, predict
from palmette.train.learner import Learner, Savings
from palmette.train.loss import LossSettings
from palmette.train.model_parts import LINEAR_LAYERS, train_all, train_lora
from palmette.train.samples import Sample


@dataclass(frozen=True)
class UpdateShape:
    """What decides how much an update holds: its largest micro-batch, what is trained and what is saved on."""

    rows: int
    prompt_tokens: int
    response_tokens: int
    micro_batches: int = 1
    lora_rank: int | None = None
    savings: Savings = field(default_factory=Savings)
    loss: LossSettings = field(default_factory=LossSettings)
    lora_targets: tuple[str, ...] = LINEAR_LAYERS

    def samples(self) -> list[Sample]:
        """Return made-up samples of this shape."""
        logprobs = (-1.0,) * self.response_tokens
        advantages = (1.0,) * self.response_tokens
        sample = Sample((1,) * self.prompt_tokens, (1,) * self.response_tokens, advantages, None, logprobs, logprobs)
        return [sample] * (self.rows * self.micro_batches)

    def trained(self, model: Any) -> Any:
        """Return the model with gradients wanted where this update trains it."""
        if self.lora_rank is None:
            return train_all(model)
        return train_lora(model, rank=self.lora_rank, targets=self.lora_targets)

    @property
    def micro_batch_tokens(self) -> int:
        """Count the tokens of a micro-batch."""
        return self.rows * (self.prompt_tokens + self.response_tokens - 1)


def predict_update(config: Any, shape: UpdateShape, *, dtype: str = "float32", device: str = "cpu") -> Prediction:
    """Return the peak of an update, its second one, of the model that a transformers config describes.

    From the second update on, optimizer state is there before the first gradient. More than two micro-batches hold
    what two hold.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
        model = shape.trained(model)

    def work(tracker: Tracker, place: torch.device) -> None:
        fill_with_fakes(model, place, tracker)
        with _rows_known_apart():
            run_updates(model, shape, tracker)

    return predict(work, device=device)


@contextmanager
def _rows_known_apart() -> Iterator[None]:
    """Spare transformers a look at values that fake tensors do not have: whether rows hold several sequences.

    They never do in a micro-batch. Not knowing, it would hold a mask of places x places for every row.
    """
    from transformers import masking_utils

    looked = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = looked


def run_updates(model: Any, shape: UpdateShape, tracker: Tracker) -> None:
    """Make two updates under a tracker, of real or of fake tensors; of the first only what stays: optimizer state."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    tracker.track_gradients(weights)
    with tracker.counting_as(OPTIMIZER):
        learner = Learner(model, savings=shape.savings, loss=shape.loss)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    with tracker.counting_as(OPTIMIZER):
        learner.apply()
    learner.forget()
    samples = shape.samples()[: 2 * shape.rows]
    learner.accumulate(samples, micro_batch_tokens=shape.micro_batch_tokens)
    learner.clip()
    with tracker.counting_as(OPTIMIZER):
        learner.apply()
    learner.forget()
