"""Many requests at once: let in by the plan, in turn, given up when their clients go, ended when their time is up."""

import asyncio
import gc
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from palmette.backends.backend import Expansion, Step
from palmette.serve.asking.efforts import Extent, Room, extent
from palmette.serve.bounds import Bounds
from palmette.serve.refusals import ApiError
from palmette.serve.searching import seat
from palmette.serve.searching.admission import Admission
from palmette.serve.web import answers
from tests.gateway import Gate, Served, SpellingBackend, gateway_with, get, scripted

ASKED: list[Any] = [{"role": "user", "content": "2+2"}]
ANSWER = "\\boxed{4}$"


def ask(client: openai.OpenAI, model: str = "script:best-of-n", **told: Any) -> Any:
    return client.chat.completions.create(model=model, messages=ASKED, **told)


def is_idle(served: Served) -> bool:
    return served.gateway.admission.searches == 0


def wait_until_idle(served: Served) -> None:
    """Wait for the searches that are under way, however long they take to end."""
    while not is_idle(served):
        threading.Event().wait(0.01)


def thinking(expansion: Expansion, prefix: str) -> str:
    return ANSWER if "first" in prefix else "first\n"


def second_step() -> Gate:
    """Hold back the second steps of all branches."""
    return Gate(lambda expansion, prefix: "first" in prefix)


def test_a_stream_whose_client_goes_away_ends_its_search_and_frees_its_place() -> None:
    gate = second_step()
    with scripted(thinking, gate=gate, kv_tokens=10_000) as served, served.client() as client:
        stream = ask(client, stream=True)
        assert "first" in "".join(getattr(next(stream).choices[0].delta, "reasoning", "") or "" for _ in range(2))
        gate.reached.wait()
        assert served.gateway.admission.taken_tokens == 3 + 4 * 200
        stream.close()
        wait_until_idle(served)  # The gate is shut: nothing but giving up can end the search.
        assert served.gateway.admission.taken_tokens == 0
        released = {node for question, node in served.backend.released if question == "request-1"}
        assert {0, *range(1, 5)} <= released, "the prompt and every branch"
        text = get(f"{served.url}/metrics").text
        assert 'palmette_searches_total{end="given_up",strategy="best_of_n"} 1.0' in text


def test_a_request_without_a_stream_whose_client_goes_away_ends_too() -> None:
    gate = second_step()
    with scripted(thinking, gate=gate) as served:
        with served.client() as client, ThreadPoolExecutor(1) as pool:
            future = pool.submit(ask, client)
            gate.reached.wait()
            client.close()
            gate.open()
            assert future.exception() is not None or future.result()
        wait_until_idle(served)
        assert served.gateway.admission.taken_tokens == 0


def test_a_tree_that_does_not_fit_now_is_told_when_to_come_again_and_fits_then() -> None:
    gate = second_step()
    bounds = Bounds(waiting=0)
    with scripted(thinking, gate=gate, kv_tokens=1000, bounds=bounds) as served, served.client() as client:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, client)
            gate.reached.wait()
            with pytest.raises(openai.RateLimitError) as refused:
                ask(client)
            assert int(refused.value.response.headers["retry-after"]) >= 1
            assert refused.value.code == "rate_limit_exceeded" and "803" in str(refused.value)
            narrow = {"palmette": {"width": 1}}
            gate.open()
            assert first.result().choices[0].message.content == "4"
        assert ask(client).choices[0].message.content == "4"
        assert ask(client, max_tokens=150, extra_body=narrow).choices[0].palmette["width"] == 1


def test_the_client_itself_waits_and_tries_again() -> None:
    gate = second_step()
    with (
        scripted(thinking, gate=gate, bounds=Bounds(searches=1, waiting=0)) as served,
        served.client(max_retries=5) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(ask, client)
        gate.reached.wait()
        second = pool.submit(ask, client)
        while 'status="429"' not in get(f"{served.url}/metrics").text:
            pass
        gate.open()
        assert first.result().choices and second.result().choices


def test_requests_in_line_are_let_in_when_others_end() -> None:
    gate = second_step()
    with (
        scripted(thinking, gate=gate, bounds=Bounds(searches=2, wait_seconds=3600)) as served,
        served.client() as client,
        ThreadPoolExecutor(8) as pool,
    ):
        asked = [pool.submit(ask, client, seed=number) for number in range(8)]
        while served.gateway.admission.waiting < 6:
            threading.Event().wait(0.01)
        gate.open()
        assert all(future.result().choices[0].message.content == "4" for future in asked)


def test_a_tree_that_can_never_fit_is_refused_with_one_that_does() -> None:
    with scripted(lambda expansion, prefix: ANSWER, kv_tokens=500) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError, match="width 2") as refused:
            ask(client, max_tokens=200, extra_body={"palmette": {"width": 4}})
        assert refused.value.code == "tree_too_large"
        assert ask(client, max_tokens=200, extra_body={"palmette": {"width": 2}}).choices
        assert ask(client, reasoning_effort="xhigh").choices[0].palmette["width"] == 2, "as wide as fits"


def test_a_narrow_search_does_not_wait_for_a_wide_one() -> None:
    """64 rows are in flight at the most: the wide search's 300 steps are started in turn with the narrow one's."""
    order: list[str] = []
    gate = Gate(lambda expansion, prefix: True)

    def script(expansion: Expansion, prefix: str) -> str:
        order.append(expansion.question)
        return ANSWER if prefix.count("x\n") > 2 else "x\n"

    bounds = Bounds(width=512)
    with (
        scripted(script, gate=gate, bounds=bounds, total_tokens=40) as served,
        served.client() as client,
        ThreadPoolExecutor(2) as pool,
    ):
        wide = pool.submit(ask, client, extra_body={"palmette": {"width": 300}})
        gate.reached.wait()
        narrow = pool.submit(ask, client)
        while served.gateway.admission.searches < 2:
            threading.Event().wait(0.01)
        gate.open()
        assert wide.result().choices and narrow.result().choices
    last = {name: len(order) - 1 - order[::-1].index(name) for name in set(order)}
    assert last["request-2"] < last["request-1"]


def test_a_search_whose_time_is_up_gives_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [0.0]
    monkeypatch.setattr(seat, "monotonic", lambda: time.monotonic() + later[0])

    def script(expansion: Expansion, prefix: str) -> str:
        later[0] = 3600.0 if prefix.count("on\n") >= 3 else 0.0
        return ANSWER if expansion.node == 1 else "on\n"

    with scripted(script, total_tokens=10**5, depth=10**5) as served, served.client() as client:
        choice = ask(client, "script:best-of-n").choices[0]
        assert choice.message.content == "4" and choice.palmette["timed_out"] is True
        assert choice.palmette["waves"] >= 3 and is_idle(served)


def test_many_searches_at_once_give_what_each_gives_alone() -> None:
    def script(expansion: Expansion, prefix: str) -> str:
        return f"\\boxed{{{expansion.seed % 1000}}}$" if prefix.count("\n") > 2 else f"{expansion.seed % 7}\n"

    def found(client: openai.OpenAI, seed: int) -> Any:
        message = ask(client, "script:rebase", seed=seed).choices[0].message
        return message.content, message.reasoning

    with scripted(script, lambda step: 0.5) as served, served.client() as client:
        alone = [found(client, seed) for seed in range(12)]
        with ThreadPoolExecutor(12) as pool:
            together = list(pool.map(lambda seed: found(client, seed), range(12)))
        assert together == alone and len(set(alone)) > 6
        wait_until_idle(served)


def test_a_silent_stream_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "KEEP_ALIVE_SECONDS", 0.05)
    gate = second_step()
    with scripted(thinking, gate=gate) as served:
        body = {"model": "script:best-of-n", "messages": ASKED, "stream": True}
        with httpx2.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=None) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith(":")) == ": keep-alive"
            gate.open()
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_the_line_is_kept_and_who_leaves_it_is_forgotten() -> None:
    async def scene() -> None:
        admission = Admission(100, Bounds(searches=8, waiting=2, wait_seconds=3600))
        first = await admission.enter(80)
        large, small = asyncio.create_task(admission.enter(60)), asyncio.create_task(admission.enter(10))
        await asyncio.sleep(0)
        assert admission.waiting == 2, "the small one fits, but does not overtake the large one"
        with pytest.raises(ApiError) as refused:
            await admission.enter(1)
        assert refused.value.status == 429 and refused.value.retry_after is not None
        large.cancel()
        assert (await small).kv_tokens == 10 and admission.taken_tokens == 90
        admission.leave(first)
        admission.leave(first)
        assert admission.taken_tokens == 10
        admission.leave(small.result())
        assert admission.taken_tokens == admission.waiting == admission.searches == 0

    asyncio.run(scene())


def test_those_who_are_refused_together_are_not_told_to_come_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.serve.searching.admission.monotonic", lambda: 100.0)

    async def scenario() -> list[int | None]:
        admission = Admission(100, Bounds(searches=1, waiting=4, wait_seconds=0.0))
        await admission.enter(100)
        told = []
        for _ in range(3):
            with pytest.raises(ApiError) as refused:
                await admission.enter(100)
            told.append(refused.value.retry_after)
        return told

    assert asyncio.run(scenario()) == [2, 4, 6]  # A search is taken to last 2 s while none has ended.


def test_nobody_is_let_in_any_more_and_those_in_line_are_told() -> None:
    async def scene() -> None:
        admission = Admission(100, Bounds(wait_seconds=3600))
        place = await admission.enter(80)
        line = [asyncio.create_task(admission.enter(60)) for _ in range(2)]
        await asyncio.sleep(0)
        admission.close()
        for each in (*line, asyncio.create_task(admission.enter(1))):
            with pytest.raises(ApiError, match="is being stopped") as refused:
                await each
            assert refused.value.status == 503 and refused.value.retry_after is not None
        admission.leave(place)
        assert admission.taken_tokens == admission.waiting == admission.searches == 0

    asyncio.run(scene())


def test_a_search_that_is_given_up_while_its_answers_are_read_ends_with_the_one_in_hand() -> None:
    class Slow:
        """Gives up the search while it reads the first answer."""

        by_answer = True
        read = 0

        def extract(self, solution: str) -> str | None:
            Slow.read += 1
            for running in list(served.gateway._running):
                served.gateway.give_up(running)
            return "4"

        def canonical(self, answer: str) -> str:
            return answer

        def verdict(self, question: Any, solution: str, answer: str | None) -> Any:
            raise AssertionError("not any more")

    with scripted(lambda expansion, prefix: ANSWER) as served, served.client() as client:
        served.gateway._judge = Slow()
        with pytest.raises(openai.InternalServerError):
            ask(client, extra_body={"palmette": {"width": 4}})
        wait_until_idle(served)
        assert Slow.read == 1


def living() -> Counter[str]:
    """Count the objects of this process by their types."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())


def test_of_requests_that_were_answered_only_the_newest_trees_are_kept() -> None:
    bounds = Bounds(kept_trees=3)
    before = living()  # What other tests in this process have left.
    with scripted(thinking, lambda step: 0.5, bounds=bounds) as served, served.client() as client:
        for number in range(12):
            stream = ask(client, "script:rebase", seed=number, stream=True)
            if number % 3:
                list(stream)
            stream.close()
        wait_until_idle(served)
        alive = living() - before
    assert alive["SearchJob"] <= 1 and alive["Seat"] <= 1 and alive["Growth"] <= 1  # Of the thread that was last used.
    assert 0 < alive["GrowingTree"] <= 3


def test_extents_by_hand() -> None:
    room = Room(context_tokens=100, kv_tokens=1000, width=8, total_tokens=64, most_width=32)
    assert extent(room, 10, None, width=None, total_tokens=None) == Extent(8, 64, 10)
    assert extent(room, 10, "minimal", width=None, total_tokens=None) == Extent(2, 32, 10)
    assert extent(room, 10, "xhigh", width=None, total_tokens=None) == Extent(15, 64, 10), "15 x 64 + 10 <= 1000"
    assert extent(room, 60, "high", width=None, total_tokens=None) == Extent(16, 40, 60), "the context ends it"
    assert Extent(15, 64, 10).kv_tokens == 970
    for told in ({"width": None, "total_tokens": 91}, {"width": 33, "total_tokens": None}):
        with pytest.raises(ApiError):
            extent(room, 10, None, **told)
    with pytest.raises(ApiError, match="100 tokens"):
        extent(room, 100, None, width=None, total_tokens=None)


class FailingAtOne(SpellingBackend):
    """Fails at the steps of one question while those of another are in flight, as a server does that refuses it."""

    failed_question: str | None = None

    def finished(self) -> list[tuple[Expansion, Step]]:
        wrong = [each for each in self.started if each.prefix == (ord("9"),)]
        if wrong and len(wrong) < len(self.started):
            self.failed_question = wrong[0].question
            self.started = [each for each in self.started if each not in wrong]
            raise RuntimeError("refused")
        return super().finished()


def test_a_step_that_fails_ends_its_own_search_alone() -> None:
    gate = second_step()
    backend = FailingAtOne(thinking, gate)
    with gateway_with(backend) as served, served.client() as client, ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, client, "script:best-of-n")
        gate.reached.wait()
        wrong: list[Any] = [{"role": "user", "content": "9"}]
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="script:best-of-n", messages=wrong)
        gate.open()
        assert other.result().choices[0].message.content == "4"
        assert is_idle(served)
