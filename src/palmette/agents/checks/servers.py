"""Checks of commands that start servers and other programs, and of requests to servers."""

import os
from collections.abc import Mapping
from typing import Any

from palmette.agents.checks.verdict import Verdict, broken, kept
from palmette.agents.subject import Subject

_CACHE_OFF = {"disable-radix-cache": "sglang", "no-enable-prefix-caching": "vllm"}
_SAMPLING = ("temperature", "top_p", "top_k")


def prefix_cache(subject: Subject) -> Verdict | None:
    """Servers that branches are asked from keep prefixes in a cache."""
    servers = [command for command in subject.commands if command.server is not None]
    for command in servers:
        off = _CACHE_OFF.keys() & command.flags.keys()
        if off:
            return broken(f"--{min(off)}: every branch computes its whole path again", f"without --{min(off)}")
    return kept("prefixes are cached") if servers else None


def threads_sleep(subject: Subject) -> Verdict | None:
    """Threads that wait go to sleep, and there are not more of them than cores."""
    if not subject.commands:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for command in subject.commands:
        if command.environment.get("OMP_WAIT_POLICY", "").lower() == "active":
            return broken("OMP_WAIT_POLICY is active: threads that wait keep their cores", "OMP_WAIT_POLICY=passive")
        threads = command.environment.get("OMP_NUM_THREADS", "")
        if threads.isdecimal() and int(threads) > cores:
            return broken(f"OMP_NUM_THREADS is {threads} on {cores} cores", f"OMP_NUM_THREADS={cores}")
    return kept("threads may sleep")


def _sampling(request: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = request.get("sampling_params")
    return inner if isinstance(inner, Mapping) else request


def scores_without_tokens(subject: Subject) -> Verdict | None:
    """A request that scores generates no token where the server allows that, and one at most elsewhere."""
    for request in subject.requests:
        sampling = _sampling(request)
        if not (request.get("return_logprob") or request.get("logprob_token_ids") or request.get("echo")):
            continue
        key = "max_new_tokens" if sampling is not request else "max_tokens"
        most = 0 if sampling is not request else 1
        asked = sampling.get(key, 16)
        if isinstance(asked, int) and asked <= most:
            return kept(f"{key} is {asked}")
        return broken(f"{key} is {asked}: what is generated is thrown away", f"{key} {most}")
    return None


def one_seed_per_request(subject: Subject) -> Verdict | None:
    """A seeded request asks for one sample."""
    for request in subject.requests:
        sampling = _sampling(request)
        seed = sampling.get("seed", sampling.get("sampling_seed"))
        if seed is None:
            continue
        count = sampling.get("n", 1)
        if count != 1:
            return broken(f"n is {count} with seed {seed}: the samples depend on how they are grouped", "n 1")
        return kept(f"one sample with seed {seed}")
    return None


def sends_all_sampling(subject: Subject) -> Verdict | None:
    """A request names all of its sampling: what it leaves out is the server's own default."""
    for request in subject.requests:
        sampling = _sampling(request)
        if not {"prompt", "messages", "text", "input_ids"} & request.keys() or sampling.get("temperature") == 0:
            continue
        missing = [key for key in _SAMPLING if key not in sampling]
        if missing:
            return broken(f"{', '.join(missing)} not sent: the model's generation config decides", f"{missing[0]} sent")
        return kept("temperature, top_p and top_k are sent")
    return None
