"""The update of a config predicted on fake tensors, for a plan to take the place of its formulas."""

from typing import Any

from palmette.config import Config
from palmette.errors import ConfigError
from palmette.memory.tracker import GRADIENTS, TEMPORARY
from palmette.planner.find_shape import find_config
from palmette.planner.job import Job, UpdateNeeds
from palmette.planner.run_plan import devices_of, job_of
from palmette.train.fake_update import UpdateShape, predict_update
from palmette.train.learner import Savings
from palmette.zoo.foreign import told_as


def predicted_lines(config: Config) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the bytes of an update's gradients and activations, logits among the latter, and what to know of them.

    Takes seconds and no memory to speak of. Raises ConfigError where the config asks for what the learner does not do,
    BackendError where transformers cannot make the model.
    """
    if config.train.logits != "chunked":
        raise ConfigError(
            f"only what the learner runs can be predicted, and its logits are chunked, not {config.train.logits!r}: "
            f"set train.logits to chunked, or plan without --predict"
        )
    on_cuda = any(device.kind == "cuda" for device in devices_of(config)) and config.policy.device != "cpu"
    job = job_of(config, train=True, served=on_cuda)
    assert job.update is not None
    found = predict_update(
        _model_config(job), fullest(job.update), dtype=job.policy.dtype, device="cuda" if on_cuda else "cpu"
    )
    return {"gradients": found.lines[GRADIENTS], "activations": found.lines[TEMPORARY]}, found.notes


def _model_config(job: Job) -> Any:
    from transformers import AutoConfig

    values = find_config(job.policy.name)
    values = {**values, **(values.get("text_config") or {})}
    family = values.pop("model_type", None)
    with told_as(f"the update of {job.policy.name} cannot be predicted"):
        return AutoConfig.for_model(str(family), **values)


def fullest(update: UpdateNeeds) -> UpdateShape:
    """Return the shape of an update whose micro-batches are as full as any can be.

    Samples of full length may not fill one where shorter ones, being more, would: these are longer by what is missing.
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
        lora_targets=update.lora_targets,
        savings=Savings(update.checkpointing),
    )
