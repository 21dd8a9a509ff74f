"""What servers do wrong is told in one line, and nobody waits for an answer that does not come."""

import json
import socket
import threading
from typing import Any

import pytest

from palmette.backends.blocking import expand_all
from palmette.backends.servers import client
from palmette.config import load_config
from palmette.errors import BackendError, ConfigError
from palmette.run.parts import check_names, load_backend
from palmette.settings import PolicySettings
from tests.dialects import Fault, Manner, serving
from tests.served import DIALECTS, backend_at, backend_of, step

AFTER_START = {"vllm": 3, "sglang": 2, "openai": 2}
"""Requests to write that a server gets while it is checked; an OpenAI-compatible one gets another."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.001)


def told_of(fault: Fault, dialect: str = "vllm", **settings: Any) -> str:
    """Return the one line about a server that answers like this once it is checked."""
    manner = Manner(dialect, fault=lambda count: fault if count >= AFTER_START[dialect] else None)
    with serving(manner) as [server], backend_of(server, **settings) as backend:
        with pytest.raises(BackendError) as caught:
            expand_all(backend, [step()])
        told = str(caught.value)
        assert "\n" not in told and len(told) < 400 and told.startswith(server.address)
        return told.removeprefix(server.address)


def completion(**changed: Any) -> bytes:
    choice = {"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}, **changed}
    return json.dumps({"choices": [choice]}).encode()


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            Fault(400, b'{"error": {"message": "max_tokens\\n is wrong", "code": 400}}'),
            " answered /v1/completions with status 400: max_tokens is wrong",
        ),
        (
            Fault(422, b'{"detail": [{"loc": ["body"]}]}'),
            " answered /v1/completions with status 422: [{'loc': ['body']}]",
        ),
        (Fault(500, b""), " answered /v1/completions with status 500: no message"),
        (Fault(307, b"elsewhere"), " answered /v1/completions with status 307: elsewhere"),
        (Fault(503, b"busy"), " answered /v1/completions with status 503: busy, 3 times in a row"),
        (Fault(200, b"<html>\n\x1b[31mhello"), " answered /v1/completions with what is no JSON: '<html>  [31mhello'"),
        (Fault(200, b'{"choices": [{"tok'), ' answered /v1/completions with what is no JSON: \'{"choices": [{"tok\''),
        (Fault(200, b"[" * 100_000), f" answered /v1/completions with what is no JSON: '{'[' * 197}...'"),
        (
            Fault(200, b'{"choices": []}'),
            " answered /v1/completions wrongly: choices: List should have at least 1 item after validation, not 0",
        ),
        (
            Fault(200, completion(token_ids=[-1])),
            " answered /v1/completions wrongly: choices.0.token_ids.0: Input should be greater than or equal to 0",
        ),
        (
            Fault(200, completion(logprobs=None)),
            " answered /v1/completions wrongly: choices.0.logprobs: Input should be a valid dictionary or instance of "
            "_Logprobs",
        ),
    ],
)
def test_a_wrong_answer_is_one_line(fault: Fault, line: str) -> None:
    assert told_of(fault) == line


def test_a_page_of_four_megabytes_is_cut_to_a_line() -> None:
    page = b"<p>error</p>" * 350_000
    assert told_of(Fault(500, page)).startswith(" answered /v1/completions with status 500: <p>error</p><p>")


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_ANSWER_BYTES", 10_000)
    told = told_of(Fault(200, b"x" * 10_001))
    assert told == " answered /v1/completions with more than 10000 bytes"


@pytest.mark.parametrize("fault", [Fault(200, b'{"choices"', declared_bytes=4000), Fault(body=None)])
def test_an_answer_that_breaks_off_is_asked_for_again_and_then_told(fault: Fault) -> None:
    told = told_of(fault)
    assert told.startswith(" broke off at /v1/completions: ") and told.endswith(", 3 times in a row")


def test_tokens_without_their_log_probabilities_are_refused() -> None:
    fault = Fault(200, completion(token_ids=[1, 2]))
    manner = Manner("vllm", fault=lambda count: fault if count >= AFTER_START["vllm"] else None)
    refused = pytest.raises(BackendError, match="wrote 2 tokens with 1 log-probabilities for question x: expected one")
    with serving(manner) as [server], backend_of(server) as backend, refused:
        expand_all(backend, [step()])


def test_a_server_that_does_not_answer_in_time_is_told_with_the_setting() -> None:
    refused = pytest.raises(BackendError, match=r"did not answer /\S+ within 0.2 s \(policy.answer_seconds\)")
    held = Manner("vllm", holds=threading.Event())
    with serving(held) as [server], refused, backend_of(server, answer_seconds=0.2):
        pass


def test_a_server_that_is_not_there_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(BackendError, match=f"^{address} cannot be reached: .*3 times in a row$"),
            backend_at(address),
        ):
            pass


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_of_another_model_is_refused_unless_its_name_is_given(dialect: str) -> None:
    with serving(Manner(dialect, model="/models/other-7b")) as [server]:
        line = "serves /models/other-7b, not fake: set policy.model to the model that it serves, or policy.served_model"
        with pytest.raises(ConfigError, match=line), backend_of(server):
            pass
        with backend_of(server, served_model="/models/other-7b") as backend:
            assert backend.context_tokens == 4096
        with pytest.raises(ConfigError, match="not another"), backend_of(server, served_model="another"):
            pass


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_server_with_another_tokenizer_is_refused(dialect: str) -> None:
    class Letters:
        def encode(self, text: str, **_: Any) -> list[int]:
            return [ord(letter) for letter in text]

    refused = pytest.raises(ConfigError, match="gives a test text 50 tokens, that of policy.model fake 49 other ones")
    with serving(Manner(dialect, tokenizer=Letters())) as [server], refused, backend_of(server):
        pass


def test_a_server_that_writes_nothing_is_refused_before_it_is_asked_to() -> None:
    with serving(Manner("sglang", is_generation=False)) as [server]:
        with pytest.raises(ConfigError, match="as an embedding model: it writes no steps"), backend_of(server):
            pass
        assert [path for path, _ in server.asked] == ["/model_info"]


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            Fault(400, b'{"error": "prompt must be a string"}'),
            "must be a string. A search needs a server that takes",
        ),
        (
            Fault(200, b'{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 200}}'),
            "counted 200 tokens in a prompt of 49 token ids",
        ),
        (Fault(200, b'{"choices": [{"text": "x"}]}'), "counted None tokens in a prompt of 49 token ids"),
    ],
)
def test_a_server_that_takes_no_token_ids_is_refused(fault: Fault, line: str) -> None:
    refused = pytest.raises(ConfigError, match=line)
    with serving(Manner("openai", fault=lambda count: fault)) as [server], refused, backend_of(server):
        pass


def test_a_step_that_may_exceed_the_context_is_refused_with_nothing_in_flight() -> None:
    with serving(Manner("vllm", context_tokens=20)) as [server], backend_of(server) as backend:
        with pytest.raises(ConfigError, match="may need 21 tokens, the policy takes 20"):
            backend.start([step(1), step(2, max_tokens=18)])
        assert backend.finished() == []


def test_settings_of_a_policy_in_this_process_are_refused_on_a_server() -> None:
    for changed in ({"adapter": "somewhere"}, {"quantize": "int8"}):
        with pytest.raises(ConfigError, match="and the policy is on a server"):
            load_backend(PolicySettings(backend="vllm", address="http://127.0.0.1:1", **changed))  # type: ignore[arg-type]


def test_addresses_are_checked_with_the_config() -> None:
    def address(value: Any, backend: str = "vllm") -> tuple[str, ...]:
        config = load_config(None, {"policy.backend": backend, "policy.address": value})
        check_names(config, clusters=False)
        return config.policy.address

    assert address("http://a:8000/v1/, https://b/") == ("http://a:8000", "https://b")
    assert address(["http://[::1]:8000"]) == ("http://[::1]:8000",)
    for wrong in ("a:8000", "ftp://a", "http://", "http://a:99999", "http://a b", "http://a?key=1", 5, [5]):
        with pytest.raises(ConfigError, match=r"policy.address.* write an address like http://127.0.0.1:8000"):
            address(wrong)
    with pytest.raises(ConfigError, match="must not hold a password: use PALMETTE_API_KEY"):
        address("http://me:secret@a")
    with pytest.raises(ConfigError, match="policy.backend vllm needs policy.address, such as http://127.0.0.1:8000"):
        address([])
    with pytest.raises(ConfigError, match="policy.address is set, and policy.backend is local"):
        address("http://a", backend="local")


def test_the_key_of_the_environment_is_sent_and_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(client.API_KEY, "secret-key")
    with serving(Manner("vllm")) as [server], backend_of(server):
        assert set(server.keys) == {"Bearer secret-key"}
    assert told_of(Fault(401, b'{"error": "wrong key"}')) == " answered /v1/completions with status 401: wrong key"
    monkeypatch.setenv(client.API_KEY, "secret\nkey")
    refused = pytest.raises(BackendError, match="^PALMETTE_API_KEY has characters that no HTTP header can have$")
    with serving(Manner("vllm")) as [server], refused, backend_of(server):
        pass
