"""Thousands of fuzzed requests against a gateway that runs: each is served, or refused with 4xx in OpenAI's shape."""

import argparse
import sys
from collections import Counter
from random import Random

import httpx2

from tests.fuzzed import body, fault_in


def main() -> None:
    """Send the requests and print how they were answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    random, seen, faults = Random(told.seed), Counter[int](), []
    with httpx2.Client(timeout=None) as client:
        names = [model["id"] for model in client.get(f"{told.url}/v1/models").json()["data"]]
        for number in range(told.requests):
            path = "/v1/completions" if random.random() < 0.2 else "/v1/chat/completions"
            sent = body(random, random.choice(names))
            answer = client.post(told.url + path, content=sent, headers={"Content-Type": "application/json"})
            seen[answer.status_code] += 1
            fault = fault_in(answer.status_code, answer.text)
            if fault is not None:
                faults.append(f"request {number}: {fault}: {sent[:300]!r}")
        searches = client.get(f"{told.url}/health").json()["searches"]
    print(", ".join(f"{status}: {count}" for status, count in sorted(seen.items())), f"; {searches} searches left")
    print("\n".join(faults) or "no fault")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
