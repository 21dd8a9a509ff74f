"""Hundreds of fuzzed requests: each is served, or refused with 4xx in OpenAI's shape; none harms the next."""

from collections import Counter
from random import Random

import httpx2

from tests.fuzzed import body, fault_in
from tests.gateway import scripted, sums

REQUESTS = 400


def test_fuzzed_requests_are_served_or_refused_in_one_shape() -> None:
    random, headers, seen = Random(16), {"Content-Type": "application/json"}, Counter[int]()
    with scripted(sums, lambda step: 0.5) as served, httpx2.Client(timeout=None) as client:
        for number in range(REQUESTS):
            path = "/v1/completions" if random.random() < 0.2 else "/v1/chat/completions"
            sent = body(random, random.choice(("script", "script:rebase")))
            answer = client.post(served.url + path, content=sent, headers=headers)
            seen[answer.status_code] += 1
            fault = fault_in(answer.status_code, answer.text)
            assert fault is None, f"request {number}: {fault}: {sent[:500]!r}"
        assert client.get(f"{served.url}/health").json()["searches"] == 0
    assert seen[400] > REQUESTS / 2 and seen[404] and seen[200]
