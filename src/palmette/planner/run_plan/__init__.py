"""A run's config turned into a job, and that job planned on the run's devices."""

from palmette.planner.run_plan.in_process import devices_of, job_in_process, refuse_what_cannot_fit
from palmette.planner.run_plan.job import job_of, kv_token_bytes, reference_of
from palmette.planner.run_plan.memory import PlannedMemory, planned_memory
from palmette.planner.run_plan.plan import engine_of, plan_run, served_roles

__all__ = [
    "PlannedMemory",
    "devices_of",
    "engine_of",
    "job_in_process",
    "job_of",
    "kv_token_bytes",
    "plan_run",
    "planned_memory",
    "reference_of",
    "refuse_what_cannot_fit",
    "served_roles",
]
