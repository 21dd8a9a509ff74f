"""The gateway on the built-in engine: searches are the library's own, and nothing is left in the KV cache."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import palmette
from palmette.config import load_config
from palmette.serve.bounds import Bounds
from palmette.serve.open import Opened, opened
from palmette.serve.searching.search_job import QUESTION
from palmette.serve.web.app import make_app
from palmette.tasks.task import Question
from tests.gateway import HOSTS, get, listening

SETTINGS = {"policy.model": "seedling", "search.lambda_diversity": 0, "search.width": 8, "search.total_tokens": 96}
SUM = "(3+4)*2-5"
ASKED: list[Any] = [{"role": "user", "content": SUM}]


@pytest.fixture(scope="module")
def ready() -> Iterator[Opened]:
    with opened(load_config(None, SETTINGS), Bounds(wait_seconds=3600)) as ready:
        yield ready


@pytest.fixture(scope="module")
def url(ready: Opened) -> Iterator[str]:
    with listening(make_app(ready.gateway, None, HOSTS)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=None) as client:
        yield client


def held(ready: Opened) -> int:
    backend: Any = ready.gateway.engine.parts.backend
    return int(backend.kv_tokens_held)


def wait_until_idle(ready: Opened) -> None:
    while ready.gateway.admission.searches:
        threading.Event().wait(0.01)


def test_a_search_behind_a_request_is_the_librarys_search(client: openai.OpenAI, ready: Opened) -> None:
    answer = client.chat.completions.create(model="seedling:ets", messages=ASKED, seed=3, logprobs=True)
    question = Question(QUESTION, ({"role": "user", "content": SUM},))
    with palmette.Searcher(strategy="ets", seed=3, settings=SETTINGS) as searcher:
        result = searcher.search(question)
    choice: Any = answer.choices[0]
    assert (
        (choice.message.content, choice.message.reasoning)
        == (result.answer, result.solution)
        == ("9", choice.message.reasoning)
    )
    assert choice.palmette["tokens"] == result.tokens and choice.palmette["kv_peak"] == result.peak_kv_tokens
    assert answer.usage is not None and answer.usage.prompt_tokens == len(result.tree.prompt_tokens)
    leaf = result.choices["weighted"].leaf
    assert leaf is not None
    told = [logprob for step in result.tree.steps(leaf) for logprob in step.logprobs]
    assert [token.logprob for token in choice.logprobs.content] == pytest.approx(told, abs=1e-3)
    assert held(ready) == 0


def test_cancelled_in_the_middle_the_kv_cache_is_empty_again(client: openai.OpenAI, ready: Opened, url: str) -> None:
    seen = []
    for seed in range(4):
        stream = client.chat.completions.create(model="seedling:rebase", messages=ASKED, seed=seed, stream=True)
        next(iter(stream))
        while not held(ready) and ready.gateway.admission.searches:
            pass
        seen.append(held(ready))
        stream.close()
    wait_until_idle(ready)
    assert max(seen) > 0, "there was something to free"
    lines = get(f"{url}/metrics").text.splitlines()
    assert "palmette_kv_tokens_held 0.0" in lines and "palmette_kv_tokens_promised 0.0" in lines


def test_requests_side_by_side_answer_as_they_do_alone(client: openai.OpenAI, ready: Opened) -> None:
    def found(place: int) -> tuple[str | None, int]:
        model = ("seedling:rebase", "seedling:best-of-n", "seedling:beam", "seedling")[place % 4]
        told: Any = {"temperature": 0.5} if place % 3 == 0 else {}
        answer = client.chat.completions.create(model=model, messages=ASKED, seed=place, **told)
        assert answer.usage is not None
        return answer.choices[0].message.content, answer.usage.completion_tokens

    alone = [found(place) for place in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(found, range(8))) == alone
    wait_until_idle(ready)
    assert held(ready) == 0


def test_a_gateway_that_is_told_to_stop_ends_what_is_under_way_and_then_itself() -> None:
    told = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "palmette", "serve", "--port", "0", *told]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[1] for line in process.stderr if (found := re.search(r"listening on (\S+)", line)))
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=None) as client:
            stream = client.chat.completions.create(model="seedling:rebase", messages=ASKED, seed=3, stream=True)
            chunks: list[Any] = [next(stream)]
            process.send_signal(signal.SIGTERM)
            chunks += stream
        assert chunks[-1].choices[0].finish_reason is not None
        said = process.stderr.read()
        assert process.wait() == 0 and not said, said
