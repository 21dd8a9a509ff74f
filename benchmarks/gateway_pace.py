"""What the gateway adds to a search: the same question and seed by the library and by a request, in turn."""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import uvicorn

from palmette.api import Searcher, load_task
from palmette.config import load_config
from palmette.serve.bounds import Bounds
from palmette.serve.open import opened
from palmette.serve.searching.search_job import QUESTION
from palmette.serve.web.app import make_app
from palmette.tasks.task import Question


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds, seconds of CPU of all threads, and what the work returned."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def main() -> None:
    """Print the ratio of times, and how long the first text of a stream takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="seedling")
    parser.add_argument("--strategy", default="rebase")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--questions", type=int, default=20)
    told = parser.parse_args()
    strategy = told.strategy if told.policy == "seedling" else "best_of_n"
    settings = {
        "policy.model": told.policy, "search.strategy": strategy, "search.width": told.width,
        "search.total_tokens": told.tokens, "search.lambda_diversity": 0,
    }  # fmt: skip
    config = load_config(None, settings)
    asked = [question.messages[-1]["content"] for question in load_task("ladder", questions=told.questions).questions]
    walls, cpus, firsts, alone = [], [], [], []
    with opened(config, Bounds()) as ready:
        server = uvicorn.Server(
            uvicorn.Config(make_app(ready.gateway, None, ()), port=8765, log_level="error", http="h11")
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        searcher = Searcher(config=config, parts=ready.gateway.engine.parts)
        url, model = "http://127.0.0.1:8765/v1/chat/completions", f"{told.policy}:{strategy.replace('_', '-')}"
        with httpx2.Client(timeout=None) as client:
            for number, text in enumerate([asked[0], *asked]):
                *earlier, last = ready.gateway.form.messages(text)
                question = Question(QUESTION, (*earlier, last))
                body = {"model": model, "messages": [{"role": "user", "content": text}], "seed": 0}
                backend: Any = ready.gateway.engine.parts.backend

                def by_library(question: Question = question, backend: Any = backend) -> Any:
                    backend.finished()  # The engine's thread may have left an interruption.
                    return searcher.search(question)

                def by_request(body: Any = body) -> Any:
                    return client.post(url, json=body).json()

                if number % 2:
                    (wall, cpu, result), (own_wall, own_cpu, answer) = timed(by_library), timed(by_request)
                else:
                    (own_wall, own_cpu, answer), (wall, cpu, result) = timed(by_request), timed(by_library)
                assert answer["usage"]["completion_tokens"] == result.tokens, (answer, result)
                begun = time.perf_counter()
                with client.stream("POST", url, json={**body, "stream": True}) as stream:
                    pieces = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {"))
                    next(
                        piece for piece in pieces if (piece["choices"] or [{"delta": {}}])[0]["delta"].get("reasoning")
                    )
                    first = time.perf_counter() - begun
                    for _ in pieces:
                        pass
                if number:  # The first one warms up.
                    walls.append(own_wall / wall)
                    cpus.append(own_cpu / cpu)
                    firsts.append(first)
                    alone.append(wall)
        server.should_exit = True
        thread.join()
    print(f"{told.policy}, {strategy}, width {told.width}, {len(walls)} questions; a search by the library takes "
          f"{statistics.median(alone):.3f} s")  # fmt: skip
    for name, ratios in (("time", walls), ("CPU time, client included", cpus)):
        print(
            f"{name}: request / library {statistics.median(ratios):.3f} in the median, "
            f"{statistics.mean(ratios):.3f} in the mean"
        )
    print(f"first reasoning text after {statistics.median(firsts):.3f} s in the median, at most {max(firsts):.3f} s")


if __name__ == "__main__":
    main()
