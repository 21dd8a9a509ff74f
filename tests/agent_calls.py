"""A call of every MCP tool, with what its answer has to hold: made over each transport."""

from pathlib import Path
from typing import Any

from mcp import Client

from palmette.config import load_config
from palmette.event_log import EventLog
from palmette.events import RunStarted, UpdateDone
from palmette.run.folder import recorded_values

EIGHT = {
    "search_knowledge": ({"query"}, {"context"}),
    "build_plan": ({"goal"}, {"constraints"}),
    "review_plan": ({"proposal", "goal"}, set()),
    "verify_code_math": ({"code_snippet", "concept_name"}, set()),
    "diagnose_failure": ({"symptoms", "logs"}, set()),
    "propose_hypothesis": ({"current_status"}, {"recent_experiments"}),
    "query_hyperparameter_priors": ({"query"}, set()),
    "get_page": ({"page_id"}, set()),
}
"""Leeroopedia's tools with their required and their optional arguments."""

CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "search_knowledge": ({"query": "learning rate for LoRA"}, "practice://learning-rate"),
    "build_plan": (
        {"goal": "train Qwen2.5-7B with GRPO", "constraints": "one 24GB GPU, 64 GB of RAM"},
        "'train.method lora'",
    ),
    "review_plan": (
        {"proposal": "palmette train --policy seedling --width 1 --set policy.top_p=0.8", "goal": "learn"},
        "group-of-two",
    ),
    "verify_code_math": (
        {"code_snippet": "def f(rewards):\n    return rewards", "concept_name": "rloo advantage"},
        "'passes': False",
    ),
    "diagnose_failure": (
        {"symptoms": "it stops", "logs": "OSError: [Errno 28] No space left on device"},
        "disk-full",
    ),
    "propose_hypothesis": (
        {"current_status": "run", "recent_experiments": "lr=1e-6 reward=0.2\nlr=1e-5 reward=0.3"},
        "lr 0.0001",
    ),
    "query_hyperparameter_priors": ({"query": "GSPO clip"}, "GSPO paper v2"),
    "get_page": ({"page_id": "practice://plan-first"}, "1.03 to 1.14"),
    "list_practices": ({"topic": "reference"}, "reference-off-device"),
    "estimate_memory": ({"policy": "Qwen/Qwen2.5-7B", "devices": "1x24GiB", "width": 64}, "'fits': True"),
    "explain_run": ({"run": "run"}, "answers-not-cut"),
    "run_status": ({"run": "run"}, "'done': 3"),
}


def make_run(root: Path) -> None:
    """Write the folder `run` of a training run whose answers are cut."""
    (root / "run").mkdir()
    with EventLog(root / "run") as log:
        log.write(RunStarted("0", recorded_values(load_config(None, {"train.updates": 3})), run="a"))
        for update in (1, 2, 3):
            numbers = {"cut_share": 0.7, "signal_share": 0.5, "reward": 0.1, "entropy": 0.5}
            log.write(UpdateDone(update, update, numbers, {}, {}))


async def call_all(client: Client) -> set[str]:
    """Call every tool but start_search, check its answer, and return the names of those called."""
    for name, (arguments, expected) in CALLS.items():
        result = await client.call_tool(name, arguments)
        assert not result.is_error and expected in str(result.structured_content), (name, result)
    page = await client.read_resource("practice://plan-first")
    assert "A run is planned before anything is loaded" in str(page.contents[0])
    prompt = await client.get_prompt("set_up_run", {"goal": "win"})
    assert "Goal: win" in str(prompt.messages[0].content)
    return set(CALLS)
