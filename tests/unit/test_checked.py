"""What parts of the user's own return and raise: plain values in events, or an error that names the part."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palmette
from palmette.backends.backend import Expansion, Step
from palmette.backends.scripted import ScriptedBackend
from palmette.errors import BackendError, ConfigError, PalmetteError, RunError
from palmette.event_log import read_events
from palmette.events import QuestionFinished, Session, WaveDone
from palmette.score.judge import load_judge
from palmette.settings import TaskSettings


class Own(ScriptedBackend):
    """Ends every solution with its first step, changed by `change`; `fields` take the place of attributes."""

    def __init__(self, change: Callable[[Step], Any] = lambda step: step, **fields: Any) -> None:
        super().__init__(lambda expansion, above: "=1$")
        self._change = change
        self.fields = fields
        for name in ("kv_bytes_per_token", "context_tokens", "calls"):
            if name in fields:
                setattr(self, name, fields[name])

    def encode(self, messages: Any) -> Any:
        return self.fields.get("prompt", super().encode(messages))

    def expand(self, expansions: Sequence[Expansion]) -> Any:
        calls = self.calls
        steps = super().expand(expansions)
        self.calls = calls
        return [self._change(step) for step in steps]


def spread_evenly(frontier: palmette.Frontier, width: int, room: int | None) -> Any:
    return {frontier.leaves[0]: width}


def searched(
    tmp_path: Path, backend: Any, scorer: Any = None, strategy: Any = spread_evenly, judge: Any = None, **more: Any
) -> list[Any]:
    """Search one question and return the events as they are read back."""
    with palmette.Searcher(backend, scorer, strategy, judge=judge, width=2, **more) as searcher:
        searcher.search({"question": "1?", "answer": "1"}, out=tmp_path / "run")
    return list(read_events(tmp_path / "run"))


class ArrayJudge:
    """Rewards of numpy."""

    by_answer = True

    def extract(self, solution: str) -> str | None:
        return solution[1:]

    def canonical(self, answer: str) -> str:
        return answer

    def verdict(self, question: palmette.Question, solution: str, answer: str | None) -> palmette.Verdict:
        return palmette.Verdict("correct", np.float32(0.25))  # type: ignore[arg-type]


def test_numbers_of_numpy_are_recorded_as_plain_numbers(tmp_path: Path) -> None:
    def change(step: Step) -> Step:
        tokens, logprobs = np.array(step.tokens), np.full(len(step.tokens), -0.5, np.float32)
        return replace(step, tokens=tokens, logprobs=logprobs, temperature=np.float64(0.5))  # type: ignore[arg-type]

    class Scorer:
        calls = np.int64(3)

        def score(self, candidates: Sequence[palmette.Candidate]) -> Any:
            return np.full(len(candidates), 0.5, np.float32)

    def allocate(frontier: palmette.Frontier, width: int, room: int | None) -> Any:
        return {np.int64(frontier.leaves[0]): np.int32(width)}

    prompt, counts = np.array([5, 6]), {"kv_bytes_per_token": np.int64(4), "calls": np.int64(7)}
    events = searched(tmp_path, Own(change, prompt=prompt, **counts), Scorer(), allocate, ArrayJudge())
    (wave,) = [event for event in events if isinstance(event, WaveDone)]
    assert [(node.tokens, node.logprobs, node.score) for node in wave.nodes] == [((61, 49, 36), (-0.5,) * 3, 0.5)] * 2
    assert wave.temperature == 0.5
    (finished,) = [event for event in events if isinstance(event, QuestionFinished)]
    assert [(leaf.leaf, leaf.answer, leaf.reward) for leaf in finished.leaves] == [(1, "1", 0.25), (2, "1", 0.25)]
    (session,) = [event for event in events if isinstance(event, Session)]
    assert session.kv_bytes_per_token == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokens": ("a", "b", "c")}, r"a step has tokens \('a', 'b', 'c'\) \(tuple\): expected token ids"),
        ({"tokens": (1, 2, -1)}, "expected token ids, 0 or more"),
        ({"tokens": (1, 2, 1.0)}, "expected token ids"),
        ({"tokens": (1, 2, 10**400)}, "expected token ids"),
        ({"tokens": 5}, r"a step has tokens 5 \(int\)"),
        ({"logprobs": (0.0, 0.0)}, "a step has 3 tokens and 2 logprobs: expected one log-probability for each token"),
        ({"logprobs": (0.0, 0.0, float("-inf"))}, "a step has logprobs .*-inf.*: expected finite numbers"),
        ({"logprobs": (0.0, 0.0, float("nan"))}, "expected finite numbers"),
        ({"logprobs": (0.0, 0.0, 5.0)}, "a step has a log-probability of 5.0: expected 0 or less"),
        ({"tokens": (1,) * 5000, "logprobs": (0.0,) * 5000}, "a step has 5000 tokens: expected at most max_tokens"),
        ({"logprobs": None}, r"a step has logprobs None \(NoneType\)"),
        ({"text": b"=1"}, r"a step has text b'=1' \(bytes\): expected a text"),
        ({"finish": "stop"}, r"a step has finish 'stop' \(str\): expected one of step, end, length"),
        ({"temperature": None}, "a step has temperature None"),
        ({"temperature": float("inf")}, "a step has temperature inf"),
    ],
)
def test_a_step_that_no_event_can_hold_is_refused_with_its_field(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(BackendError, match=f"^backend Own: .*{said}"):
        searched(tmp_path, Own(lambda step: replace(step, **fields)))


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (Own(lambda step: "=1"), r"a step is '=1' \(str\): expected a palmette.Step"),
        (Own(prompt="1?"), r"encode returned '1\?' \(str\): expected a tuple of token ids"),
        (Own(prompt=None), r"encode returned None \(NoneType\)"),
        (Own(kv_bytes_per_token=None), r"kv_bytes_per_token is None \(NoneType\): expected a whole number of bytes"),
        (Own(kv_bytes_per_token=0), "kv_bytes_per_token is 0"),
        (Own(context_tokens="many"), "context_tokens is 'many'"),
        (Own(calls=lambda: 3), "calls is .*: expected a whole number"),
    ],
)
def test_a_backend_that_breaks_its_contract_is_refused_by_name(tmp_path: Path, backend: Own, said: str) -> None:
    with pytest.raises(BackendError, match=f"^backend Own: {said}"):
        searched(tmp_path, backend)


@pytest.mark.parametrize("key", [False, 0.0, "0", np.float64(0.0)])
def test_a_leaf_is_named_by_its_number_alone(tmp_path: Path, key: Any) -> None:
    def allocate(frontier: palmette.Frontier, width: int, room: int | None) -> Any:
        return {key: width}

    with pytest.raises(ConfigError, match="strategy allocate gave children to node .*, which is not one of the open"):
        searched(tmp_path, Own(), strategy=allocate)


@pytest.mark.parametrize("score", ["0.5", None, [0.5], float("nan"), 10**400])
def test_a_score_that_is_no_number_is_refused_with_its_scorer(tmp_path: Path, score: Any) -> None:
    class Strange:
        def score(self, candidates: Sequence[palmette.Candidate]) -> Any:
            return [score] * len(candidates)

    with pytest.raises(BackendError, match="^scorer Strange: a step was scored .* and scores lie in 0 to 1"):
        searched(tmp_path, Own(), Strange())


@pytest.mark.parametrize(
    ("method", "returned", "said"),
    [
        ("extract", 1, r"extract returned 1 \(int\): expected a text, or None"),
        ("canonical", ["1"], r"canonical returned \['1'\] \(list\): expected a text"),
        ("verdict", 1.0, r"verdict returned 1.0 \(float\): expected a palmette.Verdict"),
        ("verdict", palmette.Verdict(True, 1.0), r"verdict returned True \(bool\): expected a text as outcome"),  # type: ignore[arg-type]
        ("verdict", palmette.Verdict("correct", float("nan")), r"nan \(float\): expected a finite number as reward"),
        ("verdict", palmette.Verdict("correct", "1"), r"'1' \(str\): expected a finite number as reward"),  # type: ignore[arg-type]
        ("verdict", palmette.Verdict("correct", 10**400), "expected a finite number as reward"),
    ],
)
def test_a_judge_that_breaks_its_contract_is_refused_by_name(
    tmp_path: Path, method: str, returned: Any, said: str
) -> None:
    class Strange(ArrayJudge):
        pass

    setattr(Strange, method, lambda self, *arguments: returned)
    with pytest.raises(RunError, match=f"^judge Strange: .*{said}"):
        searched(tmp_path, Own(), judge=Strange())


class Broken(palmette.Strategy):
    """Fails where it is told to."""

    where = "allocate"

    def __init__(self, settings: Any = None, **more: Any) -> None:
        super().__init__(settings, **more)
        if self.where == "its constructor":
            raise KeyError("broken")

    @property
    def uses(self) -> Any:
        return {"allocate": frozenset()}[self.where]

    def allocate(self, frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
        raise KeyError("broken")


def failing(*arguments: Any, **named: Any) -> Any:
    raise KeyError("broken")


@pytest.mark.parametrize("where", ["its constructor", "uses", "allocate"])
def test_an_error_of_a_strategy_is_told_with_its_class_and_chained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(Broken, "where", where)
    with pytest.raises(PalmetteError, match=f"strategy Broken failed in {where}: KeyError: ") as caught:
        searched(tmp_path, Own(), strategy=Broken)
    error = caught.value
    while isinstance(error.__cause__, PalmetteError):
        error = error.__cause__
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize("where", ["__init__", "encode", "expand", "release", "calls", "kv_bytes_per_token"])
def test_an_error_of_a_backend_is_told_with_its_class_and_chained(tmp_path: Path, where: str) -> None:
    class Server(Own):
        pass

    is_value = where in ("calls", "kv_bytes_per_token")
    if is_value:
        setattr(Server, "__init__", lambda self: None)  # noqa: B010  # A property cannot be set on the instance.
    setattr(Server, where, property(failing) if is_value else failing)
    told = "its attributes" if is_value else {"__init__": "its constructor"}.get(where, where)
    with pytest.raises(BackendError, match=f"^backend Server failed in {told}: KeyError: 'broken'") as caught:
        searched(tmp_path, Server)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("where", ["__init__", "extract", "canonical", "verdict"])
def test_an_error_of_a_judge_is_told_with_its_class_and_chained(tmp_path: Path, where: str) -> None:
    class Court(ArrayJudge):
        pass

    setattr(Court, where, failing)
    told = "its constructor" if where == "__init__" else where
    with pytest.raises(RunError, match=f"^judge Court failed in {told}.*: KeyError: 'broken'") as caught:
        searched(tmp_path, Own(), judge=Court)
    assert isinstance(caught.value.__cause__, KeyError)


class Grouped(palmette.Strategy):
    """Goes by clusters."""

    @property
    def uses(self) -> Any:
        return frozenset({"clusters"})

    def allocate(self, frontier: palmette.Frontier, width: int, room: int | None) -> palmette.Children:
        return {frontier.leaves[0]: width}


@pytest.mark.parametrize("returned", [KeyError("broken"), [[1.0], [1.0, 2.0]], [["x"], ["y"]], None])
def test_an_error_of_an_embedder_is_told_with_its_name_and_chained(tmp_path: Path, returned: Any) -> None:
    def vectors(texts: Sequence[str]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    backend = ScriptedBackend(lambda expansion, above: f"{expansion.node}\n")
    with pytest.raises(BackendError, match="^embedder vectors ") as caught:
        searched(tmp_path, backend, strategy=Grouped, embedder=vectors)
    assert isinstance(caught.value.__cause__, KeyError) == isinstance(returned, KeyError)


def test_an_error_of_a_scorer_is_told_with_its_class_and_chained(tmp_path: Path) -> None:
    class Critic:
        score = failing

    with pytest.raises(BackendError, match="^scorer Critic failed in score: KeyError: 'broken'") as caught:
        searched(tmp_path, Own(), Critic())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_reward_of_numpy_is_a_plain_number() -> None:
    asked = palmette.Question("q", ({"role": "user", "content": "?"},), "1")
    verdict = load_judge(lambda solution: np.float32(0.5), TaskSettings()).verdict(asked, "1", "1")
    assert json.dumps(verdict.reward) == "0.5"


def test_an_error_of_a_progress_listener_is_not_taken_for_one_of_the_backend(tmp_path: Path) -> None:
    class Telling(Own):
        on_tokens: Callable[[int], None] | None = None

        def expand(self, expansions: Sequence[Expansion]) -> Any:
            assert self.on_tokens is not None
            self.on_tokens(1)

    def listener(progress: palmette.Progress) -> None:
        if progress.tokens:
            raise KeyError("broken")

    with palmette.Searcher(Telling(), None, spread_evenly) as searcher:
        with pytest.raises(
            RunError, match="^progress listener listener failed in a call: KeyError: 'broken'"
        ) as caught:
            searcher.search("1?", progress=listener)
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_result_with_text_that_is_no_unicode_is_shown_in_a_notebook() -> None:
    with palmette.Searcher(ScriptedBackend(lambda expansion, above: "=\ud800$"), None, spread_evenly) as searcher:
        html = searcher.search("1?", progress=None)._repr_html_()
    assert "=?" in html and html.encode("utf-8")


def test_an_outcome_cannot_draw_on_the_terminal() -> None:
    class Painter(ArrayJudge):
        def verdict(self, question: palmette.Question, solution: str, answer: str | None) -> palmette.Verdict:
            return palmette.Verdict("\x1b[31m\ncorrect", 1.0)

    with palmette.Searcher(Own(), None, spread_evenly, judge=Painter(), width=1) as searcher:
        shown = str(searcher.search("1?").tree)
    assert shown == "prompt\n└─ =1  [finished,  [31m correct]"
