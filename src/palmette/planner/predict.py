"""The memory of an update, predicted by running the learner on fake tensors instead of by formulas."""

from typing import Any

from palmette.memory.tracker import GRADIENTS, TEMPORARY
from palmette.planner.job import Job, UpdateNeeds
from palmette.planner.models.find_shape import find_config
from palmette.planner.run_plan import devices_of, job_of
from palmette.settings import LORA_TARGETS, Config
from palmette.train.update.fake_update import UpdateShape, predict_update
from palmette.train.update.learner import Savings
from palmette.zoo.foreign import as_backend_error


def predicted_lines(config: Config) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the bytes of an update's gradients and activations, by the kind of line, and notes on them.

    Activations include logits. Takes seconds and hardly any memory. Raises ConfigError or BackendError for a model
    whose shape is not known or that transformers cannot build.
    """
    on_cuda = any(device.kind == "cuda" for device in devices_of(config)) and config.policy.device != "cpu"
    job = job_of(config, train=True, served=False)
    assert job.update is not None
    prediction = predict_update(
        _model_config(job), largest_update(job.update), dtype=job.policy.dtype, device="cuda" if on_cuda else "cpu"
    )
    return {"gradients": prediction.lines[GRADIENTS], "activations": prediction.lines[TEMPORARY]}, prediction.notes


def _model_config(job: Job) -> Any:
    from transformers import AutoConfig

    values = find_config(job.policy.name)
    values = {**values, **(values.get("text_config") or {})}
    family = values.pop("model_type", None)
    with as_backend_error(f"the update of {job.policy.name} cannot be predicted"):
        return AutoConfig.for_model(str(family), **values)


def largest_update(update: UpdateNeeds) -> UpdateShape:
    """Return the shape of an update whose micro-batches have as many tokens as any can have.

    Whole samples of the longest length may leave a rest of a micro-batch empty that shorter samples would fill: the
    samples are made longer to fill it.
    """
    longest = update.prompt_tokens + update.response_tokens - 1
    samples = update.questions * update.group_size
    rows = max(1, min(samples, update.micro_batch_tokens // longest))
    tokens = max(longest, min(update.micro_batch_tokens, samples * longest))
    return UpdateShape(
        rows=rows,
        prompt_tokens=update.prompt_tokens,
        response_tokens=-(-tokens // rows) + 1 - update.prompt_tokens,
        micro_batches=2 if samples > rows else 1,
        lora_rank=update.lora_rank if update.method == "lora" else None,
        lora_targets=None if update.lora_targets == LORA_TARGETS else update.lora_targets,
        savings=Savings(update.checkpointing),
    )
