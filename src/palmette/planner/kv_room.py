"""How many bytes a policy's KV cache gets by the plan, for a process that serves several searches at once."""

from palmette.errors import BackendError, ConfigError
from palmette.planner.plan import plan_job
from palmette.planner.run_plan import devices_of, job_in_process
from palmette.settings import Config


def planned_kv_bytes(config: Config, searches: int) -> int | None:
    """Return the bytes of the KV cache of so many searches at a time, as far as the plan leaves them room.

    None for a policy on servers and for a model of unknown shape. The searches are as wide as the config says.
    """
    if config.policy.is_served:
        return None
    task = config.task.model_copy(update={"questions": searches})
    search = config.search.model_copy(update={"questions_in_flight": searches, "kv_budget": None})
    try:
        job = job_in_process(config.model_copy(update={"task": task, "search": search}), train=False)
        plan = plan_job(job, devices_of(config))
    except (ConfigError, BackendError):
        return None
    lines = [line for device in plan.devices for phase in device.phases for line in phase.lines]
    found = next((line for line in lines if line.holder == "policy KV"), None)
    if found is None:
        return None
    return min(found.bytes, searches * job.search.unshared_tokens * job.policy.kv_token_bytes)
