"""Who competes on workload A: the engine, transformers' `generate` and vLLM in an environment of its own."""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from benchmarks.fixed_tree import STEP_TOKENS, Parent
from palmette.engine.cuts import Sampling
from palmette.engine.engine import Engine, Row
from palmette.engine.tree_cache import CacheNode
from palmette.engine.tree_model import TreeModel

Steps = list[list[tuple[int, ...]]]


class EngineSide:
    """The engine: 256 rows in a tick, one tree of KV."""

    name = "palmette"

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._nodes: dict[tuple[int, ...], CacheNode] = {}
        self.peak_kv_bytes = 0

    def rest(self) -> None:
        """Do nothing: it does nothing while others work."""

    def start(self) -> None:
        """Begin with an empty pool."""
        self.tree = TreeModel(self._model)
        self._engine = Engine(self.tree, Sampling(), max_lanes=512, ended=_is_full)
        self._nodes = {}

    def grow(self, parents: Sequence[Parent]) -> Steps:
        """Write all steps in one call, then keep the paths of these parents and of what grew."""
        for parent in parents:
            if not parent.name:
                self._nodes[(parent.question,)] = self.tree.cache.add(None, parent.tokens)
        wanted = {(parent.question, *parent.name) for parent in parents}
        for gone in [name for name in self._nodes if name not in wanted]:
            self.tree.cache.drop(self._nodes.pop(gone))
        rows: list[Row[str]] = []
        for parent in parents:
            above = self._nodes[(parent.question, *parent.name)]
            for child in range(parent.children):
                path = (parent.question, *parent.name, child)
                seed = int.from_bytes(hashlib.blake2b(str(path).encode(), digest_size=8).digest(), "big") >> 1
                rows.append(Row(above, seed, STEP_TOKENS))
        self._engine.add(rows)
        while any(row.ending is None for row in rows):
            self._engine.tick()
        self.peak_kv_bytes = max(self.peak_kv_bytes, self.tree.cache.pool.taken_bytes)
        left = iter(rows)
        grown: Steps = []
        for parent in parents:
            own = [next(left) for _ in range(parent.children)]
            grown.append([tuple(row.tokens) for row in own])
            for child, row in enumerate(own):
                assert row.node is not None
                self._nodes[(parent.question, *parent.name, child)] = row.node
        return grown


def _is_full(row: Row[str]) -> str | None:
    return "full" if len(row.tokens) == row.limit else None


class GenerateSide:
    """Transformers' `generate`, with its cache carried from wave to wave: nothing is computed twice, all is copied."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        self._model: Any = model
        self._rows = rows
        self._caches: dict[tuple[int, ...], tuple[DynamicCache, int]] = {}
        self._config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=STEP_TOKENS,
            min_new_tokens=STEP_TOKENS,
            pad_token_id=0,
            return_dict_in_generate=True,
        )

    def rest(self) -> None:
        """Drop all caches."""
        self._caches = {}

    def start(self) -> None:
        """Drop all caches."""
        self._caches = {}

    @torch.inference_mode()
    def grow(self, parents: Sequence[Parent]) -> Steps:
        """Write the steps of as many parents at once as give `rows` rows."""
        grown: Steps = []
        caches: dict[tuple[int, ...], tuple[DynamicCache, int]] = {}
        each = max(1, self._rows // parents[0].children)
        for start in range(0, len(parents), each):
            grown += self._batch(parents[start : start + each], caches)
        self._caches = caches
        return grown

    def _batch(self, parents: Sequence[Parent], caches: dict[tuple[int, ...], tuple[DynamicCache, int]]) -> Steps:
        longest = max(len(parent.tokens) for parent in parents)
        tokens = torch.zeros(len(parents), longest, dtype=torch.long)
        mask = torch.zeros(len(parents), longest, dtype=torch.long)
        for index, parent in enumerate(parents):
            tokens[index, longest - len(parent.tokens) :] = torch.tensor(parent.tokens)
            mask[index, longest - len(parent.tokens) :] = 1
        cache = self._above(parents)
        if cache is None:  # The prompts: computed once each, all but the last token.
            cache = DynamicCache(config=self._model.config)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            self._model(
                input_ids=tokens[:, :-1],
                attention_mask=mask[:, :-1],
                position_ids=positions[:, :-1],
                past_key_values=cache,
                logits_to_keep=1,
            )
        children = parents[0].children
        cache.batch_repeat_interleave(children)
        written = self._model.generate(
            input_ids=tokens.repeat_interleave(children, 0),
            attention_mask=mask.repeat_interleave(children, 0),
            past_key_values=cache,
            generation_config=self._config,
        )
        steps = written.sequences[:, longest:].tolist()
        for index, parent in enumerate(parents):
            for child in range(children):
                caches[(parent.question, *parent.name, child)] = written.past_key_values, index * children + child
        return [
            [tuple(step) for step in steps[index * children : (index + 1) * children]] for index in range(len(parents))
        ]

    def _above(self, parents: Sequence[Parent]) -> DynamicCache | None:
        """Return the rows of the last wave's caches that these parents continue; they lie in one cache."""
        if not parents[0].name:
            return None
        found = [self._caches[(parent.question, *parent.name)] for parent in parents]
        assert len({id(cache) for cache, _ in found}) == 1
        cache = found[0][0]
        chosen = DynamicCache(config=self._model.config)
        rows = torch.tensor([row for _, row in found])
        layers: list[Any] = list(cache.layers)
        for layer, held in enumerate(layers):
            chosen.update(held.keys[rows], held.values[rows], layer)
        return chosen


class VllmSide:
    """vLLM with prefix caching, in a process of its own environment."""

    name = "vLLM"

    def __init__(self, python: Path, model_folder: Path) -> None:
        worker = Path(__file__).with_name("vllm_worker.py")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, worker, model_folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"vLLM did not start: run {python} {worker} {model_folder} to see why")
        self.rest()

    def start(self) -> None:
        """Wake its processes, empty its prefix cache."""
        os.killpg(self._process.pid, signal.SIGCONT)
        self._ask(None)

    def rest(self) -> None:
        """Halt its processes: waiting, they poll, and take a twentieth of a core from the others."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def grow(self, parents: Sequence[Parent]) -> Steps:
        """Send all parents as one batch."""
        return self.write([(parent.tokens, [STEP_TOKENS] * parent.children) for parent in parents])

    def write(self, parents: Sequence[tuple[tuple[int, ...], Sequence[int]]]) -> Steps:
        """Return what the children of each parent (its tokens, their lengths) write, all sent at once."""
        answers = self._ask(parents)
        return [[tuple(step) for step in steps] for steps in answers]

    def stop(self) -> None:
        """End all of its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
