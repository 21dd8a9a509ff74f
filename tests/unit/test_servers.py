"""Searches over servers equal searches in this process, whatever comes back first and whichever server answers."""

import asyncio
import gc
import threading
from dataclasses import replace
from typing import Any

import pytest

from palmette.backends.backend import Backend, TellsNotices, TellsTokens
from palmette.backends.blocking import expand_all
from palmette.backends.servers import client, health
from palmette.backends.servers.dialect import ServerMetrics
from palmette.backends.vllm import VllmDialect
from palmette.errors import BackendError, ConfigError
from palmette.events import Event, RunStarted, ServerUse, Session, WaveDone
from palmette.run.server_use import metrics_of, used
from palmette.search.growth import Limits
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.search.strategies.best_of_n import BestOfN
from palmette.search.strategies.ets import Ets, EtsSettings
from palmette.search.summary import summarize
from palmette.strategy import Strategy
from palmette.tasks.task import Question
from tests.dialects import Fault, Manner, serving
from tests.fake_policy import BREAK, END, PIECES, FakeModel, FakeTokenizer, InProcess
from tests.served import DIALECTS, backend_of, step

LIMITS = Limits(width=8, depth=6, step_tokens=12, total_tokens=40, questions_in_flight=3)
QUESTIONS = [Question(name, ({"role": "user", "content": f"{name}?"},), "1") for name in ("x", "y", "z", "1+1", "2+1")]
ETS = Ets(EtsSettings(lambda_kv=1.0, lambda_diversity=1.0), width=8)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.001)


class ByLength:
    calls = 0

    def score(self, candidates: Any) -> list[float]:
        return [sum(map(ord, candidate.steps[-1])) % 97 / 97 for candidate in candidates]


def searched(backend: Backend, strategy: Strategy = ETS, limits: Limits = LIMITS) -> dict[str, list[WaveDone]]:
    """Return the waves of every question, as they are recorded."""
    heard: list[Event] = []
    list(
        search(QUESTIONS, backend, ByLength(), strategy, limits, seed=1, aggregate="mean",
               observer=Recorder(heard.append),
               clusterer=lambda groups: [[len(text) % 3 for text in group] for group in groups])
    )  # fmt: skip
    waves: dict[str, list[WaveDone]] = {}
    for event in heard:
        if isinstance(event, WaveDone):
            waves.setdefault(event.question, []).append(event)
    return waves


@pytest.mark.parametrize("strategy", [ETS, BestOfN()], ids=["ets", "best_of_n"])
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_search_over_a_server_equals_the_search_in_this_process(dialect: str, strategy: Strategy) -> None:
    expected = searched(InProcess(), strategy)
    assert len(expected) == 5 and len({len(waves) for waves in expected.values()}) > 1
    finishes = [node.finished for waves in expected.values() for wave in waves for node in wave.nodes]
    assert any(finishes) and not all(finishes)
    with serving(Manner(dialect)) as [server], backend_of(server) as backend:
        assert searched(backend, strategy) == expected
        assert not backend.notices and backend.context_tokens == 4096


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_trees_do_not_depend_on_the_order_of_answers_nor_on_how_many_are_in_flight(dialect: str) -> None:
    expected = searched(InProcess())
    for rows, in_flight in ((64, 5), (3, 2)):
        with serving(Manner(dialect, spread_seconds=0.01)) as [server], backend_of(server, rows=rows) as backend:
            assert searched(backend, limits=replace(LIMITS, questions_in_flight=in_flight)) == expected


def test_log_probabilities_are_told_with_the_temperature_that_they_are_at() -> None:
    for dialect, temperature, told in (("vllm", 0.5, 1.0), ("sglang", 0.5, 0.5), ("sglang", 0.0, 1.0)):
        with serving(Manner(dialect)) as [server], backend_of(server, temperature=temperature) as backend:
            assert expand_all(backend, [step()])[0].temperature == told


def test_a_delimiter_with_no_text_before_it_does_not_end_a_step_and_the_answer_is_continued() -> None:
    with serving(Manner("vllm", fake=FakeModel(first=[BREAK]))) as [server], backend_of(server) as backend:
        [grown] = expand_all(backend, [step(max_tokens=3)])
        assert (grown.text, grown.finish) == ("\n\n\n", "length")  # Each answer began, and stopped, with a line break.
        sent = [asked for path, asked in server.asked if path == "/v1/completions" and asked["stop"]]
        assert [asked["max_tokens"] for asked in sent] == [3, 2, 1]
        assert len({asked["seed"] for asked in sent}) == 3 and sent[0]["seed"] == 1
        assert [len(asked["prompt"]) for asked in sent] == [3, 4, 5]


def test_a_stop_text_that_begins_in_the_parent_ends_a_step_where_it_is_complete() -> None:
    fake = FakeModel(first=FakeTokenizer().encode("xyxy"))
    with serving(Manner("vllm", fake=fake)) as [server], backend_of(server) as backend:
        asked = step(prefix="x?\n=", parent=3, stop="=xy")
        [grown] = expand_all(backend, [asked])
        assert (grown.text, grown.finish, len(grown.tokens), len(grown.logprobs)) == ("xy", "end", 1, 1)


def test_a_step_keeps_the_token_that_holds_its_delimiter_whole() -> None:
    fake = FakeModel(first=FakeTokenizer().encode("x+1.\n"))
    with serving(Manner("sglang", fake=fake)) as [server], backend_of(server) as backend:
        [grown] = expand_all(backend, [step()])
    assert (grown.text, grown.finish) == ("x+1.\n", "step")
    assert [PIECES[token] for token in grown.tokens] == ["x", "+1", ".\n"] and len(grown.logprobs) == 3


def test_all_sampling_is_told_so_that_no_default_of_the_server_holds() -> None:
    told = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1}
    for dialect, key in (("vllm", None), ("sglang", "sampling_params")):
        with serving(Manner(dialect)) as [server], backend_of(server, **told) as backend:
            expand_all(backend, [step(), step(2)])
            sent = [asked for path, asked in server.asked if asked and ("prompt" in asked or "input_ids" in asked)]
            sampling = sent[-1][key] if key else sent[-1]
            assert {**sampling, **told, "repetition_penalty": 1.0} == sampling
            assert sampling["stop"] == ["\n"] and sampling["stop_token_ids"] == [END]


def test_an_openai_server_says_what_it_lacks_and_searches_repeat_all_the_same() -> None:
    with serving(Manner("openai")) as [server], backend_of(server) as backend:
        assert searched(backend) == searched(backend)
        part: object = backend
        assert isinstance(part, TellsNotices)
        assert isinstance(part, TellsTokens)
        assert [notice.split(" ", 1)[1] for notice in backend.notices] == [
            "returns no token ids: the text of its steps is tokenized here",
            "the log-probabilities of an answer's tokens are recorded as their mean",
        ]
        fake = server.manner.fake = FakeModel(first=FakeTokenizer().encode("x+1.\n12<end>"))
        [grown] = expand_all(backend, [step()])
        assert (grown.text, grown.finish, len(grown.tokens)) == ("x+1.\n", "step", 3)
        server.manner.fake = FakeModel(first=FakeTokenizer().encode("x=1<end>"))
        [grown] = expand_all(backend, [step()])
        assert (grown.text, grown.finish, grown.tokens[-1], fake) == ("x=1", "end", END, fake)


def test_an_openai_server_is_refused_what_its_interface_cannot_say() -> None:
    refused = pytest.raises(ConfigError, match="use the backend vllm or sglang")
    with serving(Manner("openai")) as [server], refused, backend_of(server, top_k=5):
        pass


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_that_ignores_seeds_is_told(dialect: str) -> None:
    with serving(Manner(dialect, ignores_seeds=True)) as [server], backend_of(server) as backend:
        assert backend.notices[-1] == "the servers do not repeat a sample with the same seed: neither will a run"


def test_a_question_stays_with_one_server_and_both_servers_are_used() -> None:
    with serving(Manner("vllm"), Manner("vllm")) as servers, backend_of(*servers) as backend:
        assert searched(backend) == searched(InProcess())
        prompts = [
            {name for name in "xyz" for path, asked in server.asked
             if path == "/v1/completions" and asked["prompt"][:3] == FakeTokenizer().encode(f"{name}?\n")}
            for server in servers
        ]  # fmt: skip
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1]


@pytest.mark.parametrize("death", [Fault(body=None), Fault(500, b'{"error": {"message": "engine is dead"}}')])
def test_all_questions_are_answered_with_the_same_trees_when_one_of_two_servers_dies(death: Fault) -> None:
    dying = Manner("sglang", fault=lambda count: death if count > 20 else None)
    with serving(dying, Manner("sglang")) as [first, second], backend_of(first, second) as backend:
        assert searched(backend) == searched(InProcess())
        assert first.writes > 20 and second.writes > 20


def test_a_server_that_keeps_its_requests_open_as_its_engine_is_dead_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "LOOK_SECONDS", 0.05)
    with serving(Manner("vllm"), Manner("vllm")) as [first, second], backend_of(first, second) as backend:
        first.manner.holds, first.manner.health = threading.Event(), 503
        assert searched(backend) == searched(InProcess())
        assert first.writes and second.writes


def test_a_server_that_is_only_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_SECONDS", 0.001)
    with serving(Manner("sglang", spread_seconds=0.05)) as [server], backend_of(server) as backend:
        assert len(expand_all(backend, [step(number) for number in range(90, 97)])) == 7
        server.manner.health = 404
        assert len(expand_all(backend, [step(number) for number in range(90, 97)])) == 7
        assert "/health" in {path for path, _ in server.asked}


def test_when_no_server_is_left_each_one_is_told() -> None:
    dying = [Manner("vllm", fault=lambda count: Fault(body=None) if count > 10 else None) for _ in range(2)]
    refused = pytest.raises(BackendError, match="no server is left")
    with serving(*dying) as servers, backend_of(*servers) as backend, refused as caught:
        searched(backend)
    assert "\n" not in str(caught.value)


def test_a_request_that_fails_as_it_is_given_up_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    async def fails_late(*_: Any, **__: Any) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise BackendError("the server has gone") from None

    with serving(Manner("vllm")) as [server], backend_of(server) as backend:
        monkeypatch.setattr(VllmDialect, "write", fails_late)
        backend.start([step()])
        begun.wait()
        backend.release("x", [1])
    gc.collect()
    assert not caplog.records and not backend.finished()


def test_a_busy_server_is_asked_again() -> None:
    fault = Fault(503, b"starting")
    busy = Manner("vllm", fault=lambda count: fault if count % 3 == 2 else None)
    with serving(busy) as [server], backend_of(server, rows=1) as backend:
        assert searched(backend) == searched(InProcess())


def test_release_gives_up_requests_in_flight() -> None:
    with serving(Manner("vllm")) as [server], backend_of(server) as backend:
        while server.arrived.acquire(blocking=False):
            pass
        server.manner.holds = threading.Event()
        backend.start([step(1), step(2), step(3)])
        for _ in range(3):
            server.arrived.acquire()
        backend.release("x", [1, 3])
        backend.release("y", [2])
        for _ in range(2):
            server.gone.acquire()
        server.manner.holds.set()
        assert [asked.node for asked, _ in backend.finished()] == [2]
        assert backend.finished() == []


def test_tokens_and_answers_are_counted_and_metrics_read() -> None:
    with serving(Manner("vllm")) as [server], backend_of(server) as backend:
        heard: list[int] = []
        backend.on_tokens = heard.append
        before = backend.calls
        grown = expand_all(backend, [step(1), step(2)])
        assert sum(heard) == sum(len(each.tokens) for each in grown) and backend.calls == before + 2
        [metrics] = backend.server_metrics()
        assert (metrics.kv_share_used, metrics.prefix_tokens, metrics.prefix_hits) == (0.25, 1200, 900)
        assert metrics.preemptions is None
    with serving(Manner("sglang")) as [server], backend_of(server) as backend:
        expand_all(backend, [step(prefix="x+1?\n", stop=None)])
        [metrics] = backend.server_metrics()
        assert metrics.kv_tokens == 35_412 and metrics.prefix_tokens is not None
        [written] = expand_all(backend, [step(prefix="x+1?\n", stop=None)])
        assert written.cached_tokens == 3
        assert metrics.prefix_hits == metrics.prefix_tokens - 3  # One token of each of three prompts was new.


MODES = ("raw_logprobs", "processed_logprobs", "processed_logits")


def test_what_log_probabilities_of_vllm_mean_is_found_out_before_the_first_step() -> None:
    raw, processed, logits = (Manner("vllm", logprobs_mode=mode) for mode in MODES)
    for manner, temperature, told in ((raw, 0.7, 1.0), (processed, 0.7, 0.7), (processed, 0.0, 1.0)):
        with serving(manner) as [server], backend_of(server, temperature=temperature) as backend:
            [written] = expand_all(backend, [step()])
            assert written.temperature == backend.logprob_temperature == told
    with serving(processed) as [server], backend_of(server) as backend:
        assert expand_all(backend, [step(temperature=0.5)])[0].temperature == 0.5
    for manners, settings, line in (
        ([processed], {"top_p": 0.9}, "gives log-probabilities after top-k, top-p and min-p: start it without, or"),
        ([logits], {}, "gives logits as log-probabilities: start it without --logprobs-mode"),
        ([raw, processed], {}, r"has another --logprobs-mode \(processed_logprobs\) than other servers: use one"),
    ):
        refused = pytest.raises(ConfigError, match=line)
        with serving(*manners) as servers, refused, backend_of(*servers, **settings):
            pass


def test_what_servers_counted_during_a_search_is_recorded_and_added_up() -> None:
    before = [ServerMetrics("a", 10, 0.5, 100, 50, 1), ServerMetrics("b", None, None, 900, 800, None)]
    after = [ServerMetrics("a", 10, 0.0, 300, 200, 4), ServerMetrics("b", None, None, 60, 30, None)]
    use = used(before, after)
    assert use == (ServerUse("a", 10, 200, 150, 3), ServerUse("b", None, 60, 30, None))  # b was started again.
    assert used([], after)[0] == ServerUse("a", 10, 300, 200, 4) and used(before, []) == ()
    session = Session(1.0, 2, 0, 1, 4, servers=use)
    summary = summarize([RunStarted("1", {}), session, replace(session, servers=())])
    assert summary.server_hit_share == 180 / 260 and summary.server_preemptions == 3
    alone = summarize([RunStarted("1", {}), replace(session, servers=())])
    assert alone.server_hit_share is None and alone.server_preemptions is None


def test_a_backend_that_is_no_server_and_a_server_that_does_not_answer_have_no_metrics() -> None:
    assert metrics_of(InProcess()) == []
    with serving(Manner("vllm")) as [server], backend_of(server) as backend:
        assert metrics_of(backend)[0].kv_tokens == 1280
        server.manner.dialect = "openai"  # It has no such page any more.
        assert metrics_of(backend) == []
