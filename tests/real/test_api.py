"""The public surface: what people import, with the shipped models."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import palmette
from palmette.event_log import read_events
from palmette.events import QuestionFinished, QuestionStarted
from palmette.run.search import Progress
from palmette.search.replay import replay
from tests import command

TASK = palmette.load_task("ladder", questions=4, grade=2)


@pytest.fixture(scope="module")
def searcher() -> Iterator[palmette.Searcher]:
    with palmette.Searcher(policy="seedling", strategy="ets", width=8, settings={"task.grade": 2}) as searcher:
        yield searcher


def test_a_question_of_ones_own_gives_an_answer_with_its_tree(searcher: palmette.Searcher) -> None:
    result = searcher.search("(3+4)*2-5")
    assert (result.answer, result.outcome) == ("9", None)  # Nobody said what is right.
    assert result.solution is not None and result.solution.strip().endswith("=9")
    assert result.score is not None and 0 < result.score <= 1
    finished = [node for node in result.tree.nodes if node.state == "finished"]
    assert len(finished) == 8
    assert all(node.reward is None and node.outcome is None for node in result.tree.nodes)
    assert result.tokens == sum(len(node.tokens) for node in result.tree.nodes[1:])
    assert all(len(node.tokens) == len(node.logprobs) for node in result.tree.nodes[1:])


def test_every_state_of_a_step_is_what_the_tree_shows(searcher: palmette.Searcher) -> None:
    results = searcher.search(TASK)
    for result in results:
        parents = {node.parent for node in result.tree.nodes}
        for node in result.tree.nodes:
            assert (node.state == "kept") == (node.id in parents)
            assert (node.state == "finished") == node.finished
        assert all(leaf.outcome is not None and leaf.reward is not None for leaf in result.leaves)
        assert any(node.cluster is not None for node in result.tree.nodes)
    assert {node.state for result in results for node in result.tree.nodes} == {"kept", "pruned", "finished"}


def test_texts_messages_rows_and_questions_are_the_same_question(searcher: palmette.Searcher) -> None:
    text = "7*3+2"
    asked = [{"role": "user", "content": text}]
    question = palmette.Question("mine", tuple(asked), "23")
    results = searcher.search([text, asked, {"question": text, "answer": 23}, question])
    assert [result.answer for result in results] == ["23"] * 4
    assert [result.outcome for result in results] == [None, None, "correct", "correct"]
    assert results[0].question.messages == results[1].question.messages == results[3].question.messages
    assert len({result.question.id for result in results}) == 4
    alone = searcher.search(asked)
    assert isinstance(alone, palmette.SearchResult)


def test_the_same_question_gets_the_same_tree_alone_and_in_company(searcher: palmette.Searcher) -> None:
    alone = searcher.search("9-4+8")
    among = searcher.search(["1+1", "9-4+8", "(2+3)*4"])[1]
    assert alone.to_dict() == among.to_dict()


def test_results_come_as_they_are_ready_with_progress_by_tokens(searcher: palmette.Searcher) -> None:
    heard: list[Progress] = []
    results = list(searcher.stream(TASK, progress=heard.append))
    assert {result.question.id for result in results} == {question.id for question in TASK.questions}
    assert heard[0] == Progress(0, 4, 0) and heard[-1].done == 4
    assert all(first.done <= second.done and first.tokens <= second.tokens for first, second in pairwise(heard))
    # Heard inside waves too: more often than once for each question. Branches that write the same count each.
    assert len(heard) > 20
    assert heard[-1].tokens == sum(result.tokens for result in results)


def test_a_stream_that_is_left_leaves_nothing_behind(searcher: palmette.Searcher) -> None:
    stream = searcher.stream(TASK)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # A generator.
    backend = searcher.load().backend
    assert backend._nodes == {}  # type: ignore[attr-defined]
    assert searcher.search("2+2").answer == "4"


def test_one_search_at_a_time_and_the_next_after_it_was_closed(searcher: palmette.Searcher) -> None:
    stream = searcher.stream(TASK)
    next(stream)
    with pytest.raises(palmette.RunError, match="is searching already"):
        searcher.search("3+4")
    stream.close()  # type: ignore[attr-defined]
    assert searcher.search("3+4").answer == "7"


def test_two_questions_with_one_id_are_refused(searcher: palmette.Searcher) -> None:
    question = TASK.questions[0]
    with pytest.raises(palmette.ConfigError, match="two questions have the id"):
        searcher.search(palmette.Task("mine", (question, question), "\n"))


def test_a_searcher_that_is_dropped_ends_its_thread() -> None:
    before = threading.active_count()
    searcher = palmette.Searcher(policy="seedling", width=1)
    searcher.search("1+1")
    assert threading.active_count() > before
    del searcher
    gc.collect()
    assert threading.active_count() == before


def test_a_recorded_search_reads_back_as_the_results_it_gave(searcher: palmette.Searcher, tmp_path: Path) -> None:
    results = searcher.search(TASK, out=tmp_path / "run")
    told = replay(read_events(tmp_path / "run"))
    for result in results:
        one = told[result.question.id]
        assert one.tree.prompt_tokens == result.tree.prompt_tokens
        assert one.tree.temperature == result.tree.temperature == 1.0
        for recorded, node in zip(one.tree.nodes, result.tree.nodes, strict=True):
            same = ("tokens", "text", "state", "cluster", "outcome", "reward", "finished")
            assert [getattr(recorded, name) for name in same] == [getattr(node, name) for name in same]
    finished = [event for event in read_events(tmp_path / "run") if isinstance(event, QuestionFinished)]
    assert all(len(event.leaves) == sum(event.leaf_outcomes.values()) for event in finished)
    started = [event for event in read_events(tmp_path / "run") if isinstance(event, QuestionStarted)]
    assert all(len(event.prompt_token_ids) == event.prompt_tokens for event in started)


def test_a_run_recorded_from_python_is_resumed_and_evaluated_by_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with palmette.Searcher(policy="seedling", strategy="rebase", width=4) as searcher:
        stream = searcher.stream(TASK, out=folder)
        first = next(stream)
        stream.close()  # type: ignore[attr-defined]
    done = command.palmette("search", "--resume", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"]["questions"] == 4
    told = replay(read_events(folder))
    assert told[first.question.id].finished is not None and len(told) == 4
    judged = command.palmette("evaluate", str(folder), "--json")
    assert set(json.loads(judged.stdout)) == {"last", "min", "mean", "prod"}


def test_a_run_of_ones_own_questions_is_resumed_with_them(tmp_path: Path) -> None:
    asked: list[str | dict[str, object]] = ["3+4", "5*6", {"question": "8-2", "answer": 6}]
    with palmette.Searcher(policy="seedling", strategy="rebase", width=2, questions_in_flight=1) as searcher:
        stream = searcher.stream(asked, out=tmp_path / "run")
        first = next(stream)
        stream.close()  # type: ignore[attr-defined]
        rest = list(palmette.Searcher.of_run(tmp_path / "run").resume(tmp_path / "run", asked))
    assert {first.question.id, *(result.question.id for result in rest)} == set(replay(read_events(tmp_path / "run")))
    assert len(rest) == 2
    done = subprocess.run(
        [sys.executable, "-m", "palmette", "evaluate", str(tmp_path / "run"), "--json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["prod"]["best"]["outcomes"] == {"correct": 1}  # One of the three has a reference.
    with pytest.raises(palmette.ConfigError, match="were given from Python"):
        list(palmette.Searcher.of_run(tmp_path / "run").resume(tmp_path / "run"))


def test_a_result_as_values_is_json_and_complete(searcher: palmette.Searcher) -> None:
    result = searcher.search({"question": "6*7", "answer": "42"})
    values = json.loads(json.dumps(result.to_dict()))
    assert (values["answer"], values["outcome"]) == ("42", "correct")
    assert set(values["choices"]) == {"best", "majority", "weighted"}
    steps = values["tree"]["steps"]
    assert [step["id"] for step in steps] == list(range(1, len(steps) + 1))
    assert all(step["score"] is not None and step["tokens"] and step["logprobs"] for step in steps)


def test_the_tree_is_drawn_as_text_and_as_a_picture_without_scripts(searcher: palmette.Searcher) -> None:
    result = searcher.search("(3+4)*2-5")
    drawn = str(result.tree).splitlines()
    assert drawn[0] == "prompt" and len(drawn) == len(result.tree.nodes)
    page = result._repr_html_()
    assert page.count("<circle") + page.count("<rect") == len(result.tree.nodes)
    assert "<script" not in page


def test_hostile_text_in_a_picture_and_in_a_drawing_is_inert() -> None:
    from palmette.search.picture import tree_svg

    tree = palmette.Tree((1,))
    tree.add(0, (2,), '</title><script>alert(1)</script>"\x1b[2J', (0.0,), finished=True).state = "finished"
    assert "<script" not in tree_svg(tree)
    assert "\x1b" not in str(tree)


def test_a_plan_tells_what_fits_and_what_would() -> None:
    fits = palmette.plan("seedling", strategy="ets", width=16, devices="cpu:8GiB")
    assert fits.fits and fits.refusal is None and fits.suggestions == ()
    assert "policy weights" in str(fits) and "palmette-plan" in fits._repr_html_()
    tight = palmette.plan("seedling", strategy="ets", width=16, devices="cpu:256MiB")
    assert not tight.fits and tight.refusal is not None and tight.to_dict()["suggestions"] == list(tight.suggestions)
    advised = next(setting for setting in tight.suggestions if setting.startswith("devices")).split('"')[1]
    assert palmette.plan("seedling", strategy="ets", width=16, devices=advised).fits


def test_answers_are_graded() -> None:
    assert palmette.grade(r"so it is \boxed{\frac{1}{2}}", "0.5") == "correct"
    assert palmette.grade("The answer is 4.", "5") == "wrong"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"strategy": "etss"}, "Did you mean 'ets'?"),
        ({"widht": 4}, "Did you mean 'search.width'?"),
        ({"policy": "smollm2-135m", "strategy": "ets"}, "there is no reward model"),
        ({"settings": {"policy.temprature": 1}}, "Did you mean 'policy.temperature'?"),
        ({"temperature": 0.5}, "Did you mean 'policy.temperature'?"),
        ({"strategy": 7}, "a strategy is a subclass of palmette.Strategy"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(palmette.ConfigError, match=complaint):
        palmette.Searcher(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("questions", [None, 7, [], [7], [""], "   ", {"text": "1+1"}, [{"role": "user"}], ["\ud800"]])
def test_what_is_no_question_is_refused(searcher: palmette.Searcher, questions: object) -> None:
    with pytest.raises(palmette.ConfigError):
        searcher.search(questions)  # type: ignore[call-overload]


def test_a_scorer_that_fails_is_told_with_the_step() -> None:
    def broken(step: str) -> float:
        raise KeyError("gone")

    searcher = palmette.Searcher("seedling", broken, "beam", width=2)
    with pytest.raises(palmette.RunError, match="the scorer broken failed on the step .*KeyError: 'gone'"):
        searcher.search("3+4")


def test_importing_palmette_lists_its_names_and_no_torch() -> None:
    code = "import palmette, sys; print(dir(palmette)); palmette.Strategy; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "Searcher" in told[0] and told[1] == "False"
    with pytest.raises(AttributeError, match="no attribute 'Sercher'"):
        palmette.Sercher  # noqa: B018


def test_loading_torch_leaves_the_environment_as_it_was() -> None:
    code = "import os; before = dict(os.environ); import palmette.quiet_torch; print(os.environ == before)"
    for given, expected in (({}, "True"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "True")):
        environment = {"PATH": "/usr/bin", "PYTHONPATH": str(Path(palmette.__file__).parents[1]), **given}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == expected
