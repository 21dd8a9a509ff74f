"""`palmette serve` in front of a real vLLM, asked by OpenAI's own client."""

import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import palmette
from tests.server.started import Up, command_of

pytestmark = pytest.mark.xdist_group("vllm")

LONG = "(3+4)*2-5+(1+2)*3-(4-2)+(5+1)*2-7"
SETTINGS = {"search.width": 4, "search.total_tokens": 96, "search.lambda_diversity": 0}


@pytest.fixture
def client(vllm: Up) -> Iterator[openai.OpenAI]:
    told = {**SETTINGS, "policy.backend": "vllm", "policy.address": vllm.addresses["policy"]}
    words = [word for key, value in told.items() for word in ("--set", f"{key}={value}")]
    command = command_of("serve", "--policy", "seedling", "--port", "0", *words)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[1] for line in process.stderr if (found := re.search(r"listening on (\S+)", line)))
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=None) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def ask(client: openai.OpenAI, model: str, **told: Any) -> Any:
    asked: Any = [{"role": "user", "content": LONG}]
    return client.chat.completions.create(model=model, messages=asked, temperature=0, seed=1, **told)


def test_searches_behind_the_gateway_are_those_of_the_local_engine_and_end_with_their_clients(
    client: openai.OpenAI, vllm: Up
) -> None:
    with palmette.Searcher("seedling", strategy="rebase", settings={**SETTINGS, "policy.temperature": 0}) as searcher:
        expected = searcher.search(LONG)
    first = ask(client, "seedling:rebase")
    assert first.choices[0].message.reasoning.strip() in (expected.solution or "")
    assert first.usage.completion_tokens == expected.tokens
    again = ask(client, "seedling:rebase")
    assert again.choices[0].message == first.choices[0].message
    # Whole blocks of 32 tokens of the prompt are found again, but never its last token.
    assert again.usage.prompt_tokens_details.cached_tokens == (again.usage.prompt_tokens - 1) // 32 * 32 > 0
    stream = ask(client, "seedling:best-of-n", stream=True, n=2)
    next(stream)
    stream.close()
    while _running(vllm.addresses["policy"]):
        time.sleep(0.1)


def _running(address: str) -> float:
    """Return how many requests vLLM is working on."""
    with urllib.request.urlopen(f"{address}/metrics") as page:
        said = page.read().decode()
    return sum(
        map(float, re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} ([\d.e+]+)$", said, re.MULTILINE))
    )
