"""The MCP server in one process: names, schemas, hints, answers, and what callers from elsewhere cannot do."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mcp import Client

from palmette.agents.mcp_http import KEY_VARIABLE, KeyGuard, is_loopback, key_for
from palmette.agents.mcp_server import make_server
from palmette.agents.tools.allowed import inside
from palmette.agents.tools.proposal import read_proposal
from palmette.errors import ConfigError
from palmette.practices.find import practices
from tests.agent_calls import CALLS, EIGHT, call_all, make_run

pytestmark = pytest.mark.unit
Answer = TypeVar("Answer")


def asked(root: Path, ask: Callable[[Client], Coroutine[Any, Any, Answer]], *, allow_runs: bool = True) -> Answer:
    async def session() -> Answer:
        async with Client(make_server(root, allow_runs=allow_runs)) as client:
            return await ask(client)

    return asyncio.run(session())


def refusal(root: Path, tool: str, **arguments: Any) -> str:
    result = asked(root, lambda client: client.call_tool(tool, arguments))
    assert result.is_error
    return str(result.content[0])


def test_all_tools_answer(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert asked(tmp_path, call_all) == set(CALLS)


def test_every_tool_has_schemas_and_all_four_hints(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in asked(tmp_path, lambda client: client.list_tools()).tools}
    assert tools.keys() == {*CALLS, "start_search"}
    for name, tool in tools.items():
        assert tool.description and tool.title and tool.output_schema and tool.input_schema["properties"]
        hints = tool.annotations
        assert hints is not None and hints.read_only_hint is (name != "start_search")
        assert (hints.destructive_hint, hints.open_world_hint) == (False, False) and hints.idempotent_hint is not None
    for name, (required, optional) in EIGHT.items():
        schema = tools[name].input_schema
        assert set(schema.get("required", [])) == required and set(schema["properties"]) == required | optional


def test_searches_are_started_only_where_that_is_allowed(tmp_path: Path) -> None:
    tools = asked(tmp_path, lambda client: client.list_tools(), allow_runs=False).tools
    assert not {"start_search", "run_status"} & {tool.name for tool in tools}


def test_practices_are_resources(tmp_path: Path) -> None:
    listed = asked(tmp_path, lambda client: client.list_resources()).resources
    assert {str(resource.uri) for resource in listed} == {f"practice://{id}" for id in practices()}


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "link/x", "a/../../b", "~root", "run\0x"])
def test_no_path_leaves_the_root(path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError):
        inside(root, path)
    assert "Error executing tool" in refusal(root, "explain_run", run=path)


@pytest.mark.parametrize(
    "settings",
    [
        {"search.strategy": "os:system"},
        {"reward.score": "os:system"},
        {"train.rewards": {"evil.py:reward": 1.0}},
        {"policy.address": "http://169.254.169.254"},
        {"task.name": "/etc/passwd"},
        {"policy.adapter": "/etc"},
        {"reward.profile": "/etc/passwd"},
        {"embedder.model": "../../x"},
        {"out": "/tmp/x"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_cannot_name_code_files_or_addresses(settings: dict[str, Any], tmp_path: Path) -> None:
    assert "Error executing tool" in refusal(tmp_path, "estimate_memory", policy="seedling", settings=settings)


def test_a_model_outside_of_the_root_is_not_read(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert "not below the root" in refusal(root, "estimate_memory", policy=str(other))
    assert "no model that is known" in refusal(root, "estimate_memory", policy="nobody/nothing")


def test_a_run_cannot_have_its_code_imported_nor_files_elsewhere_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    make_run(root)
    (tmp_path / "evil_part.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w').close()")
    (tmp_path / "secret.log").write_text("No space left on device: a secret")
    monkeypatch.syspath_prepend(str(tmp_path))
    events = root / "run/events.jsonl"
    events.write_text(events.read_text().replace('"best_of_n"', '"evil_part:Strategy"'))
    (root / "run/x.log").symlink_to(tmp_path / "secret.log")
    for tool, arguments in (("explain_run", {"run": "run"}), ("propose_hypothesis", {"current_status": "run"})):
        result = asked(root, lambda client: client.call_tool(tool, arguments))  # noqa: B023
        assert not result.is_error and "secret" not in str(result)
    assert not (tmp_path / "owned").exists()
    (root / "run/events.jsonl").rename(tmp_path / "events.jsonl")
    events.symlink_to(tmp_path / "events.jsonl")
    assert "not below the root" in refusal(root, "run_status", run="run")


def test_arguments_have_bounds(tmp_path: Path) -> None:
    assert "width" in refusal(tmp_path, "estimate_memory", policy="seedling", width=0)
    assert "strategy" in refusal(tmp_path, "estimate_memory", policy="seedling", strategy="magic")
    assert "query" in refusal(tmp_path, "search_knowledge", query="")


def test_a_proposal_is_read_as_configs_commands_requests_and_code(tmp_path: Path) -> None:
    text = """First
```yaml
train: {algorithm: gspo, clip_high: 0.2}
```
```bash
OMP_NUM_THREADS=1 vllm serve M \\
  --no-enable-prefix-caching
python -m verl.trainer.main_ppo actor_rollout_ref.ref.fsdp_config.param_offload=False
```
```json
{"prompt": "Q", "n": 4, "seed": 1}
```
```python
logits.data.div_(2)
```
"""
    subject = read_proposal(text, tmp_path).subject
    assert subject.config is not None and subject.trains and subject.config.train.algorithm == "gspo"
    assert subject.foreign == {"actor_rollout_ref.ref.fsdp_config.param_offload": False}
    assert subject.requests == ({"prompt": "Q", "n": 4, "seed": 1},) and "div_" in subject.code
    result = asked(tmp_path, lambda client: client.call_tool("review_plan", {"proposal": text, "goal": "g"}))
    risks = {risk["id"] for risk in (result.structured_content or {})["risks"]}
    assert {
        "clip-of-the-ratio",
        "prefix-cache-on",
        "reference-off-device",
        "one-seed-per-request",
        "inplace-logits",
    } <= risks


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "{" * 5000, "```yaml\n&a [&b [&c [1]]]\n```", "\x1b[2J", "''' $(rm -rf x)"]
)
def test_a_proposal_that_makes_no_sense_is_said_to_be_unread(text: str, tmp_path: Path) -> None:
    result = asked(tmp_path, lambda client: client.call_tool("review_plan", {"proposal": text, "goal": "g"}))
    assert not result.is_error and (result.structured_content or {})["approved"] is False


def test_the_masked_faults_of_debug_trl_grpo_are_told_by_their_symptoms(tmp_path: Path) -> None:
    symptoms = "training gives no improvement, the reward is 0 for all; the decoded completions are empty strings"
    call = {"symptoms": symptoms, "logs": "{'loss': 0.0, 'reward': 0.0, 'reward_std': 0.0}"}
    found = asked(tmp_path, lambda client: client.call_tool("diagnose_failure", call)).structured_content or {}
    assert found["cause_id"] == "empty-decode" and found["other_candidates"][0] == "no-signal"
    symptoms = "the decode is mended and rewards differ, but advantages are near zero"
    call = {"symptoms": symptoms, "logs": "{'loss': 0.0, 'reward': 0.4, 'reward_std': 0.3, 'grad_norm': 2e-06}"}
    found = asked(tmp_path, lambda client: client.call_tool("diagnose_failure", call)).structured_content or {}
    assert found["cause_id"] == "tiny-advantages" and "1e-4 in TRL" in found["advice"][0]


def test_listening_further_than_loopback_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost") and not is_loopback("0.0.0.0")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert key_for("127.0.0.1") is None
    with pytest.raises(ConfigError, match=KEY_VARIABLE):
        key_for("0.0.0.0")
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(ConfigError, match="at least 16"):
        key_for("0.0.0.0")


def test_a_request_without_the_key_is_refused() -> None:
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        statuses.append(200)

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    async def ask(*headers: tuple[bytes, bytes]) -> None:
        await KeyGuard(app, "k" * 16)({"type": "http", "headers": list(headers)}, None, send)

    for given in (b"Bearer " + b"k" * 15, b"Bearer", b"\xff", b"k" * 16):
        asyncio.run(ask((b"authorization", given)))
    asyncio.run(ask())
    asyncio.run(ask((b"authorization", b"Bearer " + b"k" * 16)))
    assert statuses == [401] * 5 + [200]
