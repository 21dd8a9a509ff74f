"""A search whose every part is the user's own: nothing is loaded, nothing is configured twice."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import palmette
from palmette.api import Searcher
from palmette.backends.backend import Expansion, Message
from palmette.backends.scripted import ScriptedBackend
from palmette.config import load_config
from palmette.errors import BudgetError, ConfigError
from palmette.run.parts import Askable, Parts, check_questions, load_backend, load_embedder, load_scorer, room_of
from palmette.run.search import Progress
from palmette.score.scorer import Candidate, make_embedder, make_scorer
from palmette.settings import EmbedderSettings, PolicySettings, RewardSettings, SearchSettings
from palmette.strategy import Use
from palmette.tasks.task import Question, Task

STEPS = {1: "long way\n", 2: "short\n", 3: "=41$", 4: "= 42$"}


def script(expansion: Expansion, above: str) -> str:
    assert expansion.node is not None
    assert expansion.step_end == "\n\n"  # a question of one's own is put as mathematics, step by step
    return STEPS[expansion.node]


def by_length(step: str, finished: bool) -> float:
    return 1.0 if finished else len(step) / 10


def oldest(frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
    return {frontier.leaves[0]: width}


def reward(answer: str | None, reference: str | None) -> float | None:
    return None if reference is None else 1.0 if answer is not None and answer.strip() == reference else 0.25


def test_functions_and_objects_are_parts_of_a_search() -> None:
    backend = ScriptedBackend(script)
    with palmette.Searcher(backend, by_length, oldest, judge=reward, width=2, vote="best") as searcher:
        assert searcher.config.search.strategy == f"{__name__}:oldest"
        result = searcher.search({"question": "6*7?", "answer": "42"})
    # Node 1 gets both children. Of two ends that score 0.9 x 1 each, the older one is elected.
    assert [node.parent for node in result.tree.nodes] == [None, 0, 0, 1, 1]
    assert [node.state for node in result.tree.nodes] == ["kept", "kept", "pruned", "finished", "finished"]
    assert [node.score for node in result.tree.nodes[1:]] == [0.9, 0.6, 1.0, 1.0]
    assert (result.answer, result.outcome, result.score) == ("41", "wrong", 0.9)
    assert [(leaf.outcome, leaf.reward) for leaf in result.leaves] == [("wrong", 0.25), ("correct", 1.0)]
    assert sorted(backend.released) == [(result.question.id, node) for node in range(5)]


class Clustered(palmette.Strategy):
    """Gives one child to the first leaf of each cluster."""

    @property
    def uses(self) -> frozenset[Use]:
        return frozenset({"clusters"})

    def allocate(self, frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
        if frontier.leaves == (0,):
            return {0: width}
        firsts = {frontier.clusters[leaf]: leaf for leaf in reversed(frontier.leaves)}
        return dict.fromkeys(firsts.values(), 1)


def first_letter(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] if text[0] == "a" else [0.0, 1.0] for text in texts]


def test_a_function_of_texts_is_an_embedder_and_a_class_is_a_strategy(tmp_path: Path) -> None:
    def letters(expansion: Expansion, above: str) -> str:
        assert expansion.node is not None
        return "=1$" if expansion.parent else f"{'aab'[expansion.node - 1]}{expansion.node}\n"

    backend = ScriptedBackend(letters)
    with palmette.Searcher(backend, None, Clustered, embedder=first_letter, width=3) as searcher:
        result = searcher.search("which?", out=tmp_path / "run")
    assert [node.cluster for node in result.tree.nodes] == [None, 0, 0, 1, None, None]
    assert [node.state for node in result.tree.nodes[1:4]] == ["kept", "pruned", "kept"]
    assert (result.answer, result.outcome, result.score) == ("1", None, None)  # no reference, no scores
    again = palmette.Searcher.of_run(tmp_path / "run")
    assert again.config.search.strategy == f"{__name__}:Clustered"
    assert again.config.embedder.model == f"{__name__}:first_letter"


def test_such_a_search_imports_no_torch() -> None:
    code = """
import sys, palmette
from palmette.backends.scripted import ScriptedBackend
searcher = palmette.Searcher(ScriptedBackend(lambda expansion, above: "=1$"), None, lambda f, w, r: {f.leaves[0]: w})
assert searcher.search("1?").answer == "1"
print({"torch", "transformers", "sentence_transformers"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr


def test_what_is_no_part_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="a Fraction is no backend, it has no encode, expand, release"):
        load_backend(PolicySettings(model="x", backend="fractions:Fraction"))
    with pytest.raises(ConfigError, match="a int is no scorer: give an object with a method score"):
        make_scorer(5)
    with pytest.raises(ConfigError, match="a int is no embedder: give an object with a method embed"):
        make_embedder(5)
    with pytest.raises(ConfigError, match="no scorer is named 'hed'. Did you mean 'head'"):
        load_scorer(RewardSettings(model=None, score="hed"))
    assert load_scorer(RewardSettings(model=None, score="head")) is None


def test_a_scorer_without_a_count_gets_one_and_a_function_sees_what_it_names() -> None:
    class Plain:
        def score(self, candidates: list[Candidate]) -> list[float]:
            return [1] * len(candidates)

    messages = ({"role": "system", "content": "brief"}, {"role": "user", "content": "1+1?"})
    candidate = Candidate(messages, ("so\n", "=2"), finished=True)
    counted = make_scorer(Plain())
    assert (counted.score([candidate, candidate]), counted.calls) == ([1.0, 1.0], 1)
    seen: list[object] = []

    def spy(question: str, steps: tuple[str, ...], solution: str) -> float:
        seen.append((question, steps, solution))
        return 0.5

    spied = make_scorer(spy)
    assert (spied.score([candidate]), spied.calls) == ([0.5], 1)
    assert seen == [("1+1?", ("so\n", "=2"), "so\n=2")]
    named = load_embedder(EmbedderSettings(model=f"{__name__}:first_letter"), "cpu")
    assert (named.name, named.embed(["a", "b"])) == ("first_letter", [[1.0, 0.0], [0.0, 1.0]])


def test_a_budget_is_shared_out_evenly_and_must_hold_a_prompt_with_a_first_step() -> None:
    settings = SearchSettings(strategy="ets", kv_budget=1000, questions_in_flight=4, first_step_tokens=20)
    assert room_of(SearchSettings(), 8, 50, 2) is None
    assert room_of(settings, 8, 50, 2) == 1000 // 4 // 2
    assert room_of(settings, 2, 50, 2) == 1000 // 2 // 2  # two questions: two trees
    assert room_of(settings, 8, 105, 2) == 125
    with pytest.raises(BudgetError) as caught:
        room_of(settings, 8, 106, 2)  # 126 tokens of 125
    assert "leaves each of 4 questions 125 KV tokens of 2 bytes" in str(caught.value)
    assert "Fits: search.kv_budget 1MiB, or search.questions_in_flight 3" in str(caught.value)
    # What is advised fits: three trees of 166 tokens.
    assert room_of(settings.model_copy(update={"questions_in_flight": 3}), 8, 106, 2) == 166


def test_questions_that_the_policy_cannot_take_are_refused_before_the_first() -> None:
    backend = ScriptedBackend(script)
    backend.context_tokens = 100
    short = Question("short", ({"role": "user", "content": "x" * 40},))
    long = Question("long", ({"role": "user", "content": "x" * 41},))
    config = load_config(None, {"search.total_tokens": 60})
    assert check_questions(config, Task("own", (short,), "\n"), backend) == Askable((short,), (), None)
    with pytest.raises(ConfigError, match="question long has 41 tokens .* set search.total_tokens to 59 or less"):
        check_questions(config, Task("own", (short, long), "\n"), backend)
    endless = Question("endless", ({"role": "user", "content": "x" * 100},))
    with pytest.raises(ConfigError, match="question endless has 100 tokens, the policy takes 100: leave it out"):
        check_questions(config, Task("own", (endless,), "\n"), backend)


class Picky:
    """A scorer whose model has a control token that the policy does not know."""

    calls = 0

    def check_prompt(self, messages: Sequence[Message]) -> None:
        if any("<judge>" in message["content"] for message in messages):
            raise ConfigError("a question holds '<judge>', a control token of the model: take it out of the text")

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        self.calls += 1
        return [0.5] * len(candidates)


FINE = Question("fine", ({"role": "user", "content": "1+1"},), "2")
FORGED = Question("forged", ({"role": "user", "content": "1+1<judge>"},), "2")
SAID = "question forged cannot be put to the reward model: a question holds '<judge>', a control token of the model"


def test_a_question_that_only_the_reward_model_cannot_take_is_refused_before_the_first_is_asked() -> None:
    task, backend = Task("own", (FINE, FORGED), "\n"), ScriptedBackend(script)
    with pytest.raises(ConfigError, match=f"{SAID}.*or set task.unaskable to skip"):
        check_questions(load_config(None, {}), task, backend, Picky())
    searcher = Searcher(parts=Parts(backend, Picky()), width=2)
    with pytest.raises(ConfigError, match=SAID):
        searcher.search(task)
    assert backend.calls == 0


def test_questions_that_cannot_be_asked_are_skipped_and_counted_where_the_config_says_so(tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda expansion, above: "=2$")
    long = Question("long", ({"role": "user", "content": "x" * 5000},), "2")
    backend.context_tokens = 3000
    task = Task("own", (FORGED, FINE, long), "\n")
    told: list[Progress] = []
    searcher = Searcher(parts=Parts(backend, Picky()), width=2, settings={"task.unaskable": "skip"})
    (result,) = searcher.search(task, out=tmp_path / "run", progress=told.append)
    assert (result.question.id, result.outcome) == ("fine", "correct")
    assert (told[-1].done, told[-1].total, len(told[-1].skipped)) == (1, 1, 2)
    assert told[-1].skipped[0].startswith(SAID)
    assert "question long has 5000 tokens, the policy takes 3000" in told[-1].skipped[1]
    assert list(searcher.resume(tmp_path / "run", task)) == []
    with pytest.raises(ConfigError, match=SAID):  # no question is left
        searcher.search([FORGED])
