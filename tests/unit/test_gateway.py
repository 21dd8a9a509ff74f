"""The gateway as OpenAI's own client sees it, with a policy that is a script."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest

from palmette.backends.backend import Expansion, Step
from palmette.serve.bounds import Bounds
from tests.gateway import Served, SpellingBackend, gateway_with, get, options, post, scripted, sums

ASKED: list[Any] = [{"role": "user", "content": "2+2"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    def score(step: str) -> float:
        return 0.9 if "9" in step else 0.5

    with scripted(sums, score) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client


def ask(client: openai.OpenAI, model: str = "script:rebase", **told: Any) -> Any:
    return client.chat.completions.create(model=model, messages=ASKED, **{"seed": 1, **told})


def test_a_search_answers_with_the_elected_answer_its_reasoning_and_all_tokens(client: openai.OpenAI) -> None:
    answer = ask(client)
    choice = answer.choices[0]
    assert choice.message.content in ("7", "8", "9") and choice.finish_reason == "stop"
    assert choice.message.reasoning == choice.message.reasoning_content
    assert choice.message.reasoning.startswith("step 0") and choice.message.reasoning.endswith("}")
    found = choice.palmette
    assert found["strategy"] == "rebase" and found["width"] == 4 and found["seed"] == 1
    assert sum(vote["leaves"] for vote in found["votes"]) == 4
    assert 0 < found["score"] <= 1 and found["kv_peak"] > 0 and found["tree_url"].startswith("/trees/")
    usage = answer.usage
    assert usage.prompt_tokens == len("2+2") and usage.completion_tokens == found["tokens"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details.reasoning_tokens == usage.completion_tokens
    assert usage.completion_tokens > 4 * len("step 0 of 1\n"), "pruned branches are counted too"


def test_a_stream_grows_ends_once_and_counts_once(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0]
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    *told, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == whole.palmette["tokens"]
    assert all(chunk.usage is None for chunk in told)
    deltas = [chunk.choices[0].delta for chunk in told]
    assert deltas[0].role == "assistant"
    reasoning = [delta.reasoning for delta in deltas if getattr(delta, "reasoning", None)]
    assert len(reasoning) >= 3, "one piece or more for each wave"
    assert reasoning == [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert "".join(reasoning).endswith(whole.message.reasoning.splitlines()[-1])
    assert "".join(delta.content or "" for delta in deltas) == whole.message.content
    assert [chunk.choices[0].finish_reason for chunk in told if chunk.choices[0].finish_reason] == ["stop"]
    assert told[0].choices[0].palmette["tree_url"], "the page of the tree can be opened while it grows"
    assert told[-1].choices[0].palmette["votes"] == whole.palmette["votes"]


def test_the_end_of_a_stream_is_marked(served: Served) -> None:
    body = {"model": "script:beam", "messages": ASKED, "stream": True}
    text = post(f"{served.url}/v1/chat/completions", json=body).text
    assert text.endswith("data: [DONE]\n\n") and "usage" not in text


def test_n_are_distinct_answers_of_a_search_and_samples_of_plain_generation(client: openai.OpenAI) -> None:
    found = ask(client, "script:best-of-n", n=3, extra_body={"palmette": {"width": 16}}).choices
    assert len({choice.message.content for choice in found}) == len(found) == 3
    assert [choice.index for choice in found] == [0, 1, 2]
    plain = ask(client, "script", n=3).choices
    assert len(plain) == 3 and all("step 0" in choice.message.content for choice in plain)
    assert len({choice.message.content for choice in plain}) == 3
    assert not hasattr(plain[0].message, "reasoning") and plain[0].palmette["strategy"] == "none"
    texts = dict.fromkeys(range(3), "")
    for chunk in ask(client, "script", n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(texts.values()) == [choice.message.content for choice in plain]


def test_log_probabilities_are_those_of_the_returned_path(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True).choices[0]
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.reasoning + "$"
    assert {token.logprob for token in choice.logprobs.content} == {0.0}
    assert bytes(choice.logprobs.content[0].bytes) == b"s"
    chunks = [chunk.choices[0] for chunk in ask(client, logprobs=True, stream=True)]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert streamed == choice.logprobs.content


def test_a_seed_gives_the_same_answer_twice_and_no_seed_another(client: openai.OpenAI) -> None:
    assert ask(client, seed=-5).choices[0].message == ask(client, seed=-5).choices[0].message
    seeds = [ask(client, seed=None).choices[0].palmette["seed"] for _ in range(3)]
    assert len(set(seeds)) == 3
    first = ask(client, seed=None).choices[0]
    assert ask(client, seed=first.palmette["seed"]).choices[0].message == first.message


def test_a_stop_ends_a_branch_and_is_not_part_of_the_text(client: openai.OpenAI) -> None:
    full = ask(client, "script").choices[0].message.content
    assert "1 of" in full
    for stops in ("1 of", ["1 of"], ["never", "1 of", "so"]):
        choice = ask(client, "script", stop=stops).choices[0]
        assert choice.message.content == full.partition("1 of")[0] and choice.finish_reason == "stop"
        sent = "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, "script", stop=stops, stream=True))
        assert sent == choice.message.content


def test_a_branch_that_the_limit_ends_says_so(client: openai.OpenAI) -> None:
    plain = ask(client, "script", max_tokens=5).choices[0]
    assert plain.message.content == "step " and plain.finish_reason == "length"
    assert ask(client, "script", max_tokens=50, max_completion_tokens=5).choices[0].message.content == "step "
    searched = ask(client, max_completion_tokens=6).choices[0]
    assert searched.finish_reason == "length" and searched.message.content == "step 0"


def test_effort_chooses_the_width_and_none_is_plain(client: openai.OpenAI) -> None:
    widths = [
        ask(client, reasoning_effort=effort).choices[0].palmette["width"] for effort in ("minimal", "low", "medium")
    ]
    assert widths == [1, 2, 4]
    assert ask(client, reasoning_effort="high").choices[0].palmette["width"] == 8
    assert ask(client, reasoning_effort="none").choices[0].palmette["strategy"] == "none"
    own = ask(client, "script", reasoning_effort="low").choices[0].palmette
    assert own["strategy"] == "best_of_n" and own["width"] == 2, "the gateway's own strategy"


def test_details_of_the_search_come_in_the_extra_body(client: openai.OpenAI) -> None:
    details = {"width": 6, "vote": "best", "settings": {"rebase_temperature": 0.5}, "content": "solution"}
    choice = ask(client, extra_body={"palmette": details}).choices[0]
    assert choice.palmette["width"] == 6 and choice.message.content == choice.message.reasoning
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"width": 65}, "65"),
        ({"settings": {"rebase_temprature": 0.5}}, "rebase_temperature"),
        ({"settings": {"rebase_temperature": -1}}, "rebase_temperature"),
        ({"strategy": "os:system"}, "strategy"),
        ({"address": "http://10.0.0.1"}, "address"),
    ]
    for told, named in wrong:
        with pytest.raises(openai.BadRequestError, match=named):
            ask(client, extra_body={"palmette": told})


REFUSED: list[dict[str, Any]] = [
    {"temperature": 0.5},
    {"top_p": 0.5},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"functions": [{"name": "f"}]},
    {"response_format": {"type": "json_object"}},
    {"logit_bias": {"50": 1}},
    {"presence_penalty": 0.5},
    {"top_logprobs": 3},
    {"audio": {"voice": "x"}},
]


@pytest.mark.parametrize("told", REFUSED, ids=lambda told: next(iter(told)))
def test_what_is_not_served_is_refused_by_its_name(client: openai.OpenAI, told: dict[str, Any]) -> None:
    name = next(iter(told))
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **told)
    error = refused.value
    assert error.param == name and error.code == "unsupported_parameter" and "traceback" not in str(error).lower()


def test_turns_of_tools_and_pictures_are_refused(client: openai.OpenAI) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    picture = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
    turns: list[Any] = [
        [*ASKED, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "1", "content": "4"}],
        [{"role": "user", "content": picture}],
    ]
    for messages in turns:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="script:ets", messages=messages)
        assert refused.value.param == "messages"


def test_values_that_ask_for_nothing_and_notes_of_the_client_are_taken(client: openai.OpenAI) -> None:
    told: dict[str, Any] = {
        "tools": [], "presence_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "user": "somebody",
        "metadata": {"run": "1"}, "temperature": 1, "top_p": 1.0,
    }  # fmt: skip
    assert ask(client, **told).choices[0].message.content
    parts: Any = [{"type": "text", "text": "2"}, {"type": "text", "text": "+2"}]
    developer: Any = {"role": "developer", "content": "Be brief."}
    messages = [developer, {"role": "user", "content": parts}]
    usage = client.chat.completions.create(model="script", messages=messages).usage
    assert usage is not None and usage.prompt_tokens == 3


def test_unknown_models_are_told_with_what_was_meant(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="script:rebase") as refused:
        ask(client, "script:rebse")
    assert refused.value.param == "model" and refused.value.code == "model_not_found"
    for name in ("other", "script:os:system", "script:../../etc/passwd", "script:"):
        with pytest.raises(openai.NotFoundError):
            ask(client, name)


def test_models_are_the_policy_and_its_searches(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "script" and {"script:ets", "script:best-of-n", "script:espalier"} < set(names)
    assert client.models.retrieve("script:ets").id == "script:ets"
    assert ask(client, "script:best_of_n").model == "script:best_of_n"


def test_prompts_without_messages_are_continued(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="script", prompt="2+2", seed=1, logprobs=0, stop="\n")
    choice = answer.choices[0]
    assert choice.text.startswith("step 0") and choice.logprobs is not None
    assert choice.logprobs.tokens is not None and "".join(choice.logprobs.tokens).startswith(choice.text)
    assert choice.logprobs.text_offset == list(range(len(choice.logprobs.tokens)))
    chunks = client.completions.create(model="script", prompt="2+2", seed=1, stop="\n", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    searched = client.completions.create(model="script:rebase", prompt="2+2", seed=1)
    assert searched.choices[0].text in ("7", "8", "9")
    with pytest.raises(openai.BadRequestError, match="one prompt"):
        client.completions.create(model="script", prompt=["1", "2"])


def test_health_and_metrics(served: Served, client: openai.OpenAI) -> None:
    ask(client)
    assert get(f"{served.url}/health").json()["status"] == "ok"
    lines = get(f"{served.url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['palmette_searches_total{end="done",strategy="rebase"}']) >= 1
    assert float(values['palmette_tokens_total{kind="generated"}']) > 0
    assert values["palmette_searches_running"] == "0.0" == values["palmette_kv_tokens_promised"]


def test_a_body_of_5_mb_is_refused_before_it_is_read(served: Served, client: openai.OpenAI) -> None:
    large = [{"role": "user", "content": "x" * 5_000_000}]
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="script", messages=large)  # type: ignore[arg-type]
    assert refused.value.status_code == 413 and refused.value.code == "body_too_large"

    def endless() -> Iterator[bytes]:
        yield b'{"model": "script", "messages": [{"role": "user", "content": "'
        for _ in range(100):
            yield b"x" * 100_000

    headers = {"Content-Type": "application/json"}
    answer = post(f"{served.url}/v1/chat/completions", content=endless(), headers=headers)
    assert answer.status_code == 413


def test_requests_of_pages_elsewhere_are_refused(served: Served) -> None:
    body = json.dumps({"model": "script", "messages": ASKED})
    as_text = post(f"{served.url}/v1/chat/completions", content=body, headers={"Content-Type": "text/plain"})
    assert as_text.status_code == 415
    elsewhere = get(f"{served.url}/v1/models", headers={"Host": "evil.example"})
    assert elsewhere.status_code == 421 and elsewhere.json()["error"]["code"] == "wrong_host"
    for origin in ("http://evil.example", "null", "http://127.0.0.1.evil.example", ""):
        refused = get(f"{served.url}/v1/models", headers={"Origin": origin})
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "wrong_origin", origin
    assert get(f"{served.url}/v1/models", headers={"Origin": served.url}).status_code == 200
    assert get(f"{served.url}/nowhere").json()["error"]["code"] == "not_found"
    assert get(f"{served.url}/v1/chat/completions").status_code == 405
    assert "access-control-allow-origin" not in options(f"{served.url}/v1/models").headers


def test_limits_on_messages_choices_and_stops(client: openai.OpenAI) -> None:
    many: list[Any] = [ASKED[0], {"role": "assistant", "content": "4"}] * 200
    refused: list[dict[str, Any]] = [
        {"messages": [*many, ASKED[0]]}, {"n": 17}, {"stop": list("abcde")}, {"stop": "x" * 65}, {"stop": ""},
        {"max_tokens": 0}, {"temperature": 2.5}, {"temperature": 0.001}, {"top_p": 0}, {"n": 0}, {"seed": 2**63},
        {"messages": []}, {"messages": [{"role": "assistant", "content": "4"}]},
        {"messages": [{"role": "user", "content": ""}]}, {"messages": [{"role": "king", "content": "4"}]},
    ]  # fmt: skip
    for told in refused:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{"model": "script:rebase", "messages": ASKED, **told})


def test_the_key_is_asked_for_wherever_there_is_one() -> None:
    with scripted(sums, key="k" * 20) as served:
        assert ask(served.client(), "script").choices
        for wrong in ("k" * 19, "k" * 21, "K" * 20, "ключ"):
            with pytest.raises((openai.AuthenticationError, UnicodeEncodeError)):
                served.client(api_key=wrong).models.list()
        for path in ("/v1/models", "/metrics", "/v1/models/script"):
            answer = get(served.url + path)
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        bodies = {"model": "script", "messages": ASKED}
        assert post(f"{served.url}/v1/chat/completions", json=bodies).status_code == 401
        basic = get(f"{served.url}/v1/models", headers={"Authorization": "Basic " + "k" * 20})
        assert basic.status_code == 401
        assert get(f"{served.url}/health").status_code == 200


def test_usage_tells_what_of_the_prompt_was_cached_before_the_search() -> None:
    class Caching(SpellingBackend):
        """The first branch finds two tokens of the prompt, the others what it has left; children find more."""

        def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
            cached = [2 if each.node == 1 else len(each.prefix) - (each.parent == 0) for each in expansions]
            steps = zip(super().expand(expansions), cached, strict=True)
            return [replace(step, cached_tokens=count) for step, count in steps]

    script = lambda expansion, above: "\\boxed{4}$" if "\n" in above else "so\n"  # noqa: E731
    for backend, cached in ((Caching(script), 2), (SpellingBackend(script), 0)):
        with gateway_with(backend) as served, served.client() as client:
            told: Any = [{"role": "user", "content": "2+2+2"}]
            usage = client.chat.completions.create(model="script:best-of-n", messages=told).usage
            assert usage is not None and usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens == cached


def test_a_policy_that_fails_is_told_without_details_and_the_next_request_is_served() -> None:
    fails = [True]

    def script(expansion: Expansion, prefix: str) -> str:
        if fails[0]:
            raise RuntimeError("secret of the house")
        return "\\boxed{4}$"

    with scripted(script, bounds=Bounds()) as served, served.client() as client:
        with pytest.raises(openai.InternalServerError) as refused:
            ask(client, "script:best-of-n")
        assert refused.value.status_code == 503 and "secret" not in str(refused.value)
        with pytest.raises(openai.APIError) as streamed:
            list(ask(client, "script:best-of-n", stream=True))
        assert "secret" not in str(streamed.value)
        fails[0] = False
        assert ask(client, "script:best-of-n").choices[0].message.content == "4"
        assert served.gateway.admission.taken_tokens == 0
