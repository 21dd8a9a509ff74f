"""Reward models on loopback servers: what is asked, what is read, and one line for everything that goes wrong."""

import threading
from typing import Any

import pytest

from palmette.backends.servers import client
from palmette.errors import BackendError, ConfigError
from palmette.score.scorer import Candidate
from palmette.score.served import scorer as served_scorer
from palmette.score.served.scorer import ServedGain
from palmette.score.values import gain, likelihood, on_grid, sigmoid
from tests.dialects import Fault, Manner, serving
from tests.fake_policy import BREAK, END, FakeTokenizer
from tests.reward_dialects import SCORES, FakeReward, logprob_of, outputs_at, reward_manner
from tests.served_reward import BAD, GOOD, SERVED, path, rows_and_reading, scorer_at, scorer_of

PATHS = [path("x=1\n"), path("x=1\n", "y=2\n"), path("x=1\n"), path("12\n", question="x-y?"), path("z", finished=True)]
AFTER_START = 1
"""Requests to score that a server gets while it is checked."""

ALL = [("vllm", name) for name in SERVED] + [("sglang", name) for name in ("tokens", "likelihood", "scalar", "labels")]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.001)


def expected(served: str, candidates: list[Candidate]) -> list[float]:
    """Return the scores by the fake model's own numbers."""
    scores = []
    for row in rows_and_reading(served)[0].of(candidates):
        first, second = outputs_at(row.tokens)
        value = {"tokens": first - second, "scalar": first}.get(served, second - first)
        if served == "likelihood":
            places = range(len(row.tokens) - row.step_tokens, len(row.tokens))
            value = sum(logprob_of(row.tokens[: place + 1]) for place in places) / max(1, row.step_tokens)
        scores.append((likelihood if served == "likelihood" else sigmoid)(on_grid(value)))
    return scores


@pytest.mark.parametrize(("dialect", "served"), ALL)
def test_scores_are_the_servers_numbers_in_the_order_of_candidates(dialect: str, served: str) -> None:
    with serving(reward_manner(dialect, SERVED[served])) as [server], scorer_of(server, served=served) as scorer:
        assert scorer.score(PATHS) == pytest.approx(expected(served, PATHS), abs=1e-12)
        assert len(set(scorer.score(PATHS))) >= 3 and scorer.score([]) == []


def test_rows_end_where_the_step_is_read_and_equal_ones_are_sent_once() -> None:
    with serving(reward_manner("vllm", SERVED["tokens"])) as [server], scorer_of(server) as scorer:
        before = len(server.asked)
        scorer.score(PATHS[:3])
        [(_, asked)] = server.asked[before:]
    encode = FakeTokenizer().encode
    assert asked["prompt"] == [
        [*encode("x+1\n"), *encode("x=1"), BREAK],
        [*encode("x+1\n"), *encode("x=1"), BREAK, *encode("y=2"), BREAK],
    ]
    assert asked["logprob_token_ids"] == [GOOD, BAD] and asked["max_tokens"] == 1 and asked["temperature"] == 0


def test_sglang_is_asked_for_no_token_and_for_log_probabilities_of_the_last_step_alone() -> None:
    with (
        serving(reward_manner("sglang", SERVED["likelihood"])) as [server],
        scorer_of(server, served="likelihood") as scorer,
    ):
        before = len(server.asked)
        scorer.score([path("x=1\n", "z\n"), path("x=1\n", "", finished=True), path("x=1\n", "")])
        [(_, asked)] = server.asked[before:]
    prompt, encode = FakeTokenizer().encode("x+1\n"), FakeTokenizer().encode
    assert asked["input_ids"] == [[*prompt, *encode("x=1\nz\n")], [*prompt, *encode("x=1\n"), END]]  # None for no step.
    assert asked["logprob_start_len"] == [
        len(row) - count - 1 for row, count in zip(asked["input_ids"], (2, 1), strict=True)
    ]
    assert asked["sampling_params"]["max_new_tokens"] == 0


def test_many_branches_are_few_requests_all_in_flight_at_once_without_a_thread_each() -> None:
    held = threading.Event()
    held.set()
    branches = [path(f"{n}\n", question=f"x+{question}") for question in range(8) for n in range(100)]
    with (
        serving(reward_manner("vllm", SERVED["tokens"], holds=held)) as [server],
        scorer_of(server, rows=2000) as scorer,
    ):
        while server.arrived.acquire(blocking=False):
            pass
        held.clear()
        before = len(server.asked)
        scores = scorer.begin(branches)
        requests = 8 * -(-100 // served_scorer.ROWS_TOGETHER)
        for _ in range(requests):
            assert server.arrived.acquire(timeout=60)
        own = [thread.name for thread in threading.enumerate() if thread.name == "palmette servers"]
        held.set()
        assert scores.result(60) == pytest.approx(expected("tokens", branches), abs=1e-12)
        assert len(server.asked) - before == requests and len(own) == 1
        assert max(len(asked["prompt"]) for _, asked in server.asked[before:]) == served_scorer.ROWS_TOGETHER


def test_a_question_stays_with_its_server_and_goes_to_another_when_that_fails() -> None:
    broken = threading.Event()
    first = reward_manner("vllm", SERVED["tokens"], fault=lambda count: Fault(500) if broken.is_set() else None)
    with serving(first, reward_manner("vllm", SERVED["tokens"])) as [one, two], scorer_of(one, two) as scorer:
        for _ in range(3):
            scorer.score(PATHS[:1])
        assert (one.writes, two.writes) == (3 + AFTER_START, AFTER_START)
        broken.set()
        assert scorer.score(PATHS[:1]) == pytest.approx(expected("tokens", PATHS[:1]))
        scorer.forget(PATHS[0].messages)
        scorer.score(PATHS[:1])
        assert (one.writes, two.writes) == (4 + AFTER_START, 2 + AFTER_START)


def test_a_row_longer_than_the_context_scores_0_and_is_not_sent() -> None:
    long = path("x" * 40 + "\n")
    manner = reward_manner("vllm", SERVED["tokens"], context_tokens=40)  # One of them is for the token that is written.
    with serving(manner) as [server], scorer_of(server) as scorer:
        fits, too_long = path("x" * 35 + "\n"), path("x" * 36 + "\n")
        assert [bool(score) for score in scorer.score([long, fits, too_long])] == [False, True, False]
        assert len(server.asked[-1][1]["prompt"]) == 1


def test_the_gain_asks_a_large_and_a_small_model_at_the_same_time() -> None:
    manners = [reward_manner("vllm", SERVED["likelihood"]) for _ in range(2)]
    with (
        serving(*manners) as [one, two],
        scorer_of(one, served="likelihood") as large,
        scorer_of(two, served="likelihood") as small,
    ):
        both = ServedGain(large, small)
        assert both.score(PATHS) == [0.5] * len(PATHS)  # The two fake models are the same.
        assert one.writes == two.writes > AFTER_START
        assert gain(0.5, 0.25) > 0.9 and gain(0.0, 0.5) == 0
        both.close()


def told_of(fault: Fault, dialect: str, served: str) -> str:
    """Return the one line about a server that answers like this once it is checked."""
    manner = reward_manner(dialect, SERVED[served], fault=lambda count: fault if count >= AFTER_START else None)
    with serving(manner) as [server], scorer_of(server, served=served) as scorer:
        with pytest.raises(BackendError) as caught:
            scorer.score(PATHS[:2])
        told = str(caught.value)
        assert "\n" not in told and len(told) < 400 and told.startswith(server.address)
        return told.removeprefix(server.address)


@pytest.mark.parametrize(
    ("dialect", "served"), [("vllm", "tokens"), ("vllm", "steps"), ("sglang", "tokens"), ("sglang", "scalar")]
)
@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (Fault(500, b""), " answered {} with status 500: no message"),
        (Fault(500, b"<p>error</p>" * 350_000), " answered {} with status 500: <p>error</p>"),
        (Fault(200, b'{"choices": [{"ind'), ' answered {} with what is no JSON: \'{{"choices": [{{"ind\''),
        (Fault(200, b"[1, 2]", declared_bytes=999), " broke off at {}: "),
        (Fault(200, None), " broke off at {}: "),
        (Fault(200, b'{"unlike": "any"}'), " answered {} wrongly: "),
        (Fault(400, b'{"error": {"message": "no"}}'), " answered {} with status 400: no"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_one_line(dialect: str, served: str, fault: Fault, line: str) -> None:
    route = SCORES[dialect, SERVED[served].kind]
    assert told_of(fault, dialect, served).startswith(line.format(route))


@pytest.mark.parametrize(("dialect", "served"), ALL)
def test_fewer_scores_than_asked_are_one_line(dialect: str, served: str) -> None:
    known = SERVED[served]
    fake = FakeReward(known.kind, known.outputs, known.tag, missing=1)
    with serving(reward_manner(dialect, fake)) as [server], scorer_of(server, served=served) as scorer:
        with pytest.raises(BackendError) as caught:
            scorer.score(PATHS[:2])
        route = SCORES[dialect, known.kind]
        assert str(caught.value) == f"{server.address} answered {route} for 1 row, and was asked for 2"


def test_a_slow_server_is_given_up_with_the_setting_that_says_when() -> None:
    held = threading.Event()
    held.set()
    with (
        serving(reward_manner("vllm", SERVED["tokens"], holds=held)) as [server],
        scorer_of(server) as scorer,
    ):
        held.clear()
        scorer._clients[0]._answer_seconds = 0.2  # What is held is never answered in time.
        with pytest.raises(
            BackendError, match=r"did not answer /v1/completions within 0.2 s \(reward.answer_seconds\)"
        ):
            scorer.score(PATHS[:1])
        assert server.gone.acquire(timeout=60)


def refused(manner: Manner, served: str) -> str:
    raises = pytest.raises((BackendError, ConfigError))
    with serving(manner) as [server], raises as caught, scorer_of(server, served=served):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(server.address).strip()


def test_what_a_server_was_not_started_for_is_found_before_the_first_question() -> None:
    def told(dialect: str, reward: FakeReward, served: str, **changed: Any) -> str:
        return refused(reward_manner(dialect, reward, **changed), served)

    assert told("vllm", FakeReward("step", outputs=2, tag=GOOD), "labels") == (
        "answered /pooling with 2 scores for a text with 3 tags: start it with --pooler-config "
        f'\'{{"pooling_type": "STEP", "step_tag_id": {BREAK}}}\''
    )
    assert told("vllm", FakeReward("step", tag=BREAK), "scalar") == (
        "answered /pooling with 3 scores for a text with 18 tokens: start it without a STEP pooler"
    )
    assert told("vllm", FakeReward("last", outputs=1), "labels") == (
        "answered /pooling with 1 output for a token, and 2 should be read: the served model has another head than "
        "reward.score or reward.profile says"
    )
    assert told("vllm", SERVED["scalar"], "tokens").endswith(
        "If it serves the reward model for something else, start it as a language model, without --runner pooling"
    )
    assert told("sglang", SERVED["scalar"], "tokens") == (
        "serves /models/fake as an embedding model, and log-probabilities should be read: start it without "
        "--is-embedding"
    )
    assert told("sglang", SERVED["tokens"], "scalar") == (
        "serves /models/fake as a language model, and the outputs of its head should be read: start it with "
        "--is-embedding"
    )
    assert told("vllm", SERVED["tokens"], "tokens", model="other/one") == (
        "serves other/one, not fake: set reward.model to the model that it serves, or reward.served_model to its name "
        "there if it is the same model"
    )


def test_an_embedding_server_of_sglang_is_never_asked_to_generate() -> None:
    with serving(reward_manner("sglang", SERVED["labels"])) as [server]:
        with pytest.raises(ConfigError), scorer_of(server, served="tokens"):
            pass
        with scorer_of(server, served="labels") as scorer:
            scorer.score(PATHS)
        assert "/generate" not in {route for route, _ in server.asked}


def test_an_unreachable_server_is_one_line() -> None:
    with (
        pytest.raises(BackendError, match=r"^http://127.0.0.1:1 cannot be reached: "),
        scorer_at(["http://127.0.0.1:1"], "tokens"),
    ):
        pass
