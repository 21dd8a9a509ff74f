"""KV as held, by our trees and by what a server finds in its cache."""

import json
import urllib.request
from typing import Any

import palmette
from palmette.tree import Tree

QUESTIONS = ["(3+4)*2-5", "7*3-(1+2)"]


def check_what_the_cache_holds(engine: str, address: str, strategy: str, block_tokens: int) -> None:
    """Search, then ask the server for every branch: it must hold what we count, but for a block of each branch."""
    told = {"policy.backend": engine, "policy.address": address}
    with palmette.Searcher("seedling", strategy=strategy, width=8, total_tokens=120, settings=told) as searcher:
        results = searcher.search(QUESTIONS)
    for result in results:
        tree = result.tree
        leaves = tree.leaves()
        ours = tree.kv_counts(leaves).held
        theirs = _distinct(tree, {leaf: _cached(engine, address, tree.path_tokens(leaf)) for leaf in leaves})
        assert len(leaves) >= 4 and ours > sum(map(len, (tree.prompt_tokens,)))
        assert ours - block_tokens * len(leaves) <= theirs <= ours, (strategy, ours, theirs, len(leaves))


def _distinct(tree: Tree, cached: dict[int, int]) -> int:
    """Return how many distinct prefixes the server holds, where it holds so many tokens of each leaf's path."""
    return len({tree.path_tokens(leaf)[:end] for leaf, count in cached.items() for end in range(1, count + 1)})


def _cached(engine: str, address: str, tokens: tuple[int, ...]) -> int:
    """Return how many of these tokens a server has in its cache. Their last one is computed anew in any case."""
    if engine == "sglang":
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        answer = _post(f"{address}/generate", {"input_ids": tokens, "sampling_params": sampling})
        return int(answer["meta_info"]["cached_tokens"])
    [card] = json.load(urllib.request.urlopen(f"{address}/v1/models"))["data"]
    asked = {"model": card["id"], "prompt": tokens, "max_tokens": 1, "temperature": 0.0}
    return int(_post(f"{address}/v1/completions", asked)["usage"]["prompt_tokens_details"]["cached_tokens"])


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
