"""What a search, or training, inside this process needs of its devices; refused before a weight is read."""

from collections.abc import Sequence
from dataclasses import replace

from palmette.errors import BackendError, BudgetError, ConfigError
from palmette.planner.advice import refusal
from palmette.planner.devices import Device, detect_devices, detect_gpus, host_of, parse_devices, written_size
from palmette.planner.job import Job
from palmette.planner.plan import plan_job
from palmette.planner.run_plan.job import job_of
from palmette.settings import Config


def devices_of(config: Config) -> tuple[Device, ...]:
    """Return the devices that the config declares, or those of this machine."""
    return detect_devices() if config.memory.devices is None else parse_devices(config.memory.devices)


def devices_here(config: Config, *, train: bool) -> Sequence[Device]:
    """Return the devices of what runs in this process. Declared GPUs that are not there are those of servers."""
    devices = devices_of(config)
    if config.policy.is_served and not train and not detect_gpus():
        return [device for device in devices if device.kind == "cpu"] or [host_of(devices)]
    return devices


def refuse_what_cannot_fit(config: Config, *, train: bool = False) -> None:
    """Raise BudgetError where a search, or training, inside this process cannot fit; return for an unknown shape.

    Where the policy is on servers, what is left here is planned: reward model and embedder.
    Raises ConfigError where GPUs are declared that are not there: the search would run on a CPU that was not planned.
    """
    devices = devices_here(config, train=train)
    gpus = [device for device in devices if device.kind == "cuda"]
    if gpus and config.policy.device == "auto" and not detect_gpus():
        host = next((device for device in devices if device.kind == "cpu"), gpus[0])
        raise ConfigError(
            f"memory.devices is {config.memory.devices}, and this machine has no GPU: a search runs where it is "
            f"started. Set memory.devices to cpu:{written_size(host)}, or use palmette plan to see what GPUs would hold"
        )
    try:
        job = job_in_process(config, train=train)
        plan = plan_job(job, devices)
    except (ConfigError, BackendError):
        return  # It may still run: not every shape is known. If it cannot, loading it says why.
    is_all_elsewhere = job.policy_elsewhere and job.reward is None and job.embedder is None
    if not plan.fits and not is_all_elsewhere:
        raise BudgetError(refusal(job, devices, plan))


def job_in_process(config: Config, *, train: bool) -> Job:
    """Return the job of a search or of training inside this process, without what only `palmette plan` refuses.

    Models on servers hold nothing here. An embedder may be on any device. A KV budget is refused only where it
    cannot hold a first step whatever the prompts are: once the prompts are tokenized, the search itself compares it
    with the longest.
    """
    if config.reward.is_served:
        config = config.model_copy(update={"reward": config.reward.model_copy(update={"model": None})})
    job = job_of(config, train=train, served=False, may_build=False)
    if config.policy.is_served and not train:
        job = replace(job, policy_elsewhere=True, search=replace(job.search, kv_budget_bytes=None))
    budgets = [(job.policy, job.search.kv_budget_bytes), (job.reward, job.search.reward_kv_budget_bytes)]
    tokens = [budget // model.kv_token_bytes for model, budget in budgets if model is not None and budget is not None]
    is_hopeless = any(count <= job.search.first_step_tokens for count in tokens)
    return replace(job, any_embed_device=True, checks_kv_budgets=is_hopeless)
