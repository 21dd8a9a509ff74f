"""Predicts the peak memory of an update by running the learner on fake tensors, which take no memory."""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from palmette.memory.tracker import OPTIMIZER, Prediction, Tracker, fill_with_fakes, predict
from palmette.train.model_parts import train_all, train_lora
from palmette.train.samples import Sample
from palmette.train.update.learner import Learner, Savings
from palmette.train.update.loss import LossSettings


@dataclass(frozen=True)
class UpdateShape:
    """What the memory of an update depends on: its largest micro-batch, the trained weights, the savings and the loss.

    Without `lora_rank` all weights are trained, without `lora_targets` adapters are on all linear layers.
    """

    rows: int
    prompt_tokens: int
    response_tokens: int
    micro_batches: int = 1
    lora_rank: int | None = None
    savings: Savings = field(default_factory=Savings)
    loss: LossSettings = field(default_factory=LossSettings)
    lora_targets: tuple[str, ...] | None = None

    def samples(self) -> list[Sample]:
        """Return placeholder samples of this shape, for all micro-batches."""
        logprobs = (-1.0,) * self.response_tokens
        advantages = (1.0,) * self.response_tokens
        sample = Sample((1,) * self.prompt_tokens, (1,) * self.response_tokens, advantages, None, logprobs, logprobs)
        return [sample] * (self.rows * self.micro_batches)

    def trained(self, model: Any) -> Any:
        """Return the model with `requires_grad` set on the weights that this update trains, LoRA adapters added."""
        if self.lora_rank is None:
            return train_all(model)
        return train_lora(model, rank=self.lora_rank, targets=self.lora_targets)

    @property
    def micro_batch_tokens(self) -> int:
        """The number of tokens that a micro-batch computes."""
        return self.rows * (self.prompt_tokens + self.response_tokens - 1)


def predict_update(config: Any, shape: UpdateShape, *, dtype: str = "float32", device: str = "cpu") -> Prediction:
    """Return the peak memory of the second update of the model that a transformers config describes.

    From the second update on, optimizer state exists before the first gradient. At most two micro-batches are run: more
    of them hold no more memory.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))  # type: ignore[no-untyped-call]
        model = shape.trained(model)

    def work(tracker: Tracker, fake_device: torch.device) -> None:
        fill_with_fakes(model, fake_device, tracker)
        with _without_packing_check():
            run_updates(model, shape, tracker)

    return predict(work, device=device)


@contextmanager
def _without_packing_check() -> Iterator[None]:
    """Inside the block, let transformers skip its check whether rows hold several packed sequences.

    The check reads values, which fake tensors do not have, and without its result transformers would build a mask of
    positions x positions for every row. Rows of a micro-batch never hold several sequences.
    """
    from transformers import masking_utils

    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = original


def run_updates(model: Any, shape: UpdateShape, tracker: Tracker) -> None:
    """Run two updates under a tracker, on real or fake tensors; of the first one only the optimizer step.

    That step leaves the optimizer state, as any first update does.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    tracker.track_gradients(weights)
    with tracker.counting_as(OPTIMIZER):
        learner = Learner(model, savings=shape.savings, loss=shape.loss, sharing="off")
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
