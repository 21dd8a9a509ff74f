"""New weights on loopback servers: which routes are asked, when they are asked again, what counts as stale."""

from collections.abc import Callable
from typing import Any

import pytest

from palmette.backends.blocking import expand_all
from palmette.backends.servers import client
from palmette.backends.servers.dialect import Weights
from palmette.errors import BackendError, ConfigError
from tests.dialects import Manner, serving
from tests.served import backend_of, step

ADAPTERS = [Weights(f"run-{number}", f"/adapters/{number}", is_adapter=True) for number in range(3)]
WHOLE = [Weights(f"run-{number}", f"/models/{number}", is_adapter=False) for number in range(2)]
CHANGES = ("/load_lora_adapter", "/unload_lora_adapter", "/update_weights_from_disk", "/v1/load_lora_adapter")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.001)


class Loaded:
    """What a server has: adapters by name, and the version of its whole weights."""

    def __init__(self, dialect: str) -> None:
        self.adapters: dict[str, str] = {}
        self.version = "default"
        self.manner = Manner(dialect, routes=self.routes)

    def routes(self, path: str, asked: Any) -> tuple[int, Any] | None:
        if path == "/v1/models":
            cards = [{"id": name, "root": name, "max_model_len": 4096} for name in ("/models/fake", *self.adapters)]
            return 200, {"data": cards}
        if path == "/model_info":
            return 200, {"model_path": "/models/fake", "is_generation": True, "weight_version": self.version}
        if path.endswith("/load_lora_adapter"):
            self.adapters[asked["lora_name"]] = asked["lora_path"]
            return 200, {"success": True}
        if path.endswith("/unload_lora_adapter"):
            return (200, {"success": True}) if self.adapters.pop(asked["lora_name"], None) else (400, {"error": "none"})
        if path == "/update_weights_from_disk":
            self.version = asked["weight_version"]
            return 200, {"success": True, "message": "Succeeded to update model weights."}
        name = (asked or {}).get("lora_path")
        if path == "/generate" and name is not None and name not in self.adapters:
            return 400, {"error": {"message": f"Got LoRA adapter that has never been loaded: {name}"}}
        return None


def changes(asked: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    told: Callable[[Any], str] = lambda body: body.get("lora_name") or body["weight_version"]  # noqa: E731
    return [(path.rpartition("/")[2], told(body)) for path, body in asked if path.startswith(CHANGES)]


def test_sglang_is_given_adapters_and_writes_with_the_newest() -> None:
    loaded = Loaded("sglang")
    with serving(loaded.manner) as [server], backend_of(server) as backend:
        for weights in ADAPTERS[:2]:
            backend.use_weights(weights)
            backend.use_weights(weights)  # Nothing is loaded twice.
            expand_all(backend, [step()])
        assert changes(server.asked) == [
            ("load_lora_adapter", "run-0"), ("load_lora_adapter", "run-1"), ("unload_lora_adapter", "run-0"),
        ]  # fmt: skip
        asked = [body["lora_path"] for path, body in server.asked if path == "/generate" and "lora_path" in body]
        assert set(asked) == {"run-0", "run-1"} and asked == sorted(asked)
        loaded.adapters.clear()  # As after a restart.
        expand_all(backend, [step(2)])
        assert loaded.adapters == {"run-1": "/adapters/1"} and backend.stale_steps == 0
        backend.drop_weights("run-")
        assert not loaded.adapters


def test_whole_weights_replace_each_other_on_sglang_and_steps_of_older_ones_are_counted() -> None:
    loaded = Loaded("sglang")
    with serving(loaded.manner) as [server], backend_of(server) as backend:
        for weights in WHOLE:
            backend.use_weights(weights)
        assert changes(server.asked) == [("update_weights_from_disk", "run-0"), ("update_weights_from_disk", "run-1")]
        assert loaded.version == "run-1"
        expand_all(backend, [step(number) for number in range(3)])
        assert backend.stale_steps == 3  # The fake server names no version but its first.


def test_a_server_that_fails_to_load_is_left_out_and_without_any_other_that_is_the_end() -> None:
    first, second = Loaded("vllm"), Loaded("vllm")
    own = second.routes
    second.manner.routes = lambda path, asked: (500, {}) if path == "/v1/load_lora_adapter" else own(path, asked)
    with serving(first.manner, second.manner) as [one, two]:
        with backend_of(one, two) as backend:
            backend.use_weights(ADAPTERS[0])
            assert [*first.adapters] == ["run-0"] and not second.adapters
        with backend_of(two) as backend, pytest.raises(BackendError, match="with status 500"):
            backend.use_weights(ADAPTERS[0])


def test_a_server_without_these_routes_is_one_line() -> None:
    for dialect, told in (("vllm", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"), ("sglang", "--enable-lora")):
        loaded = Loaded(dialect)
        own = loaded.routes
        loaded.manner.routes = lambda path, asked, own=own: None if "load_lora" in path else own(path, asked)  # type: ignore[misc]
        refused = pytest.raises(ConfigError, match=f"status 404: Not Found. Training needs a server .*{told}")
        with serving(loaded.manner) as [server], backend_of(server) as backend, refused:
            backend.use_weights(ADAPTERS[0])


def test_a_server_that_does_not_list_what_it_was_given_is_not_used() -> None:
    loaded = Loaded("vllm")
    own = loaded.routes
    loaded.manner.routes = lambda path, asked: (200, "ok") if "load_lora" in path else own(path, asked)
    refused = pytest.raises(BackendError, match="was given the adapter run-0, and does not list it$")
    with serving(loaded.manner) as [server], backend_of(server) as backend, refused:
        backend.use_weights(ADAPTERS[0])
