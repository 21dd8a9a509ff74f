"""A request as a search: its messages, its strategy and limits, and what its answer has to hold."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from palmette import registry
from palmette.errors import ConfigError
from palmette.serve.asking.efforts import Extent
from palmette.serve.asking.fields import ChatFields, ChatMessage, Details, Effort, TextFields
from palmette.serve.bounds import Bounds
from palmette.serve.refusals import unsupported, wrong
from palmette.settings import SearchSettings
from palmette.strategy import read_settings, settings_of
from palmette.tasks.task import ROLES, Format, Message
from palmette.units import nearest, one_line

PLAIN = "best_of_n"
"""The strategy of plain generation: samples that do not depend on each other."""

_PLAIN_STEP = 8
"""Tokens of plain text that are sent at a time, unless a line ends before."""


@dataclass(frozen=True)
class Ask:
    """What a request asks for, whatever the models are. `strategy` is None for plain generation."""

    model: str
    strategy: str | None
    kind: Literal["chat", "text"]
    messages: tuple[Message, ...]
    question: str
    details: Details
    effort: Effort | None
    n: int
    seed: int
    stops: tuple[str, ...]
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    logprobs: bool
    stream: bool
    include_usage: bool


def ask_of(
    fields: ChatFields | TextFields, strategy: str | None, form: Format, bounds: Bounds, *, own_strategy: str
) -> Ask:
    """Return what a request asks for; an effort without a strategy in the model's name takes the gateway's own.

    Raises ApiError for what is over the gateway's limits or not served.
    """
    details = fields.palmette or Details()
    n = fields.n or 1
    if n > bounds.n:
        raise wrong(f"n is {n}, this gateway gives {bounds.n} choices at the most", "n", "invalid_value")
    if fields.stream_options is not None and not fields.stream:
        raise wrong("stream_options is only for stream: true", "stream_options", "invalid_value")
    if isinstance(fields, ChatFields):
        if fields.reasoning_effort is not None:
            strategy = None if fields.reasoning_effort == "none" else strategy or own_strategy
        messages, question = _messages(fields.messages, bounds, None if strategy is None or details.as_is else form)
        max_tokens = fields.max_completion_tokens or fields.max_tokens
    else:
        question = _prompt(fields.prompt)
        messages = ({"role": "user", "content": question},)
        max_tokens = fields.max_tokens
    return Ask(
        model=fields.model,
        strategy=strategy,
        kind="chat" if isinstance(fields, ChatFields) else "text",
        messages=messages,
        question=question,
        details=details,
        effort=fields.reasoning_effort if isinstance(fields, ChatFields) else None,
        n=n,
        seed=secrets.randbelow(2**53) if fields.seed is None else fields.seed,
        stops=_stops(fields.stop, bounds),
        temperature=_temperature(fields.temperature),
        top_p=fields.top_p,
        max_tokens=max_tokens,
        logprobs=fields.logprobs is not None and fields.logprobs is not False,
        stream=bool(fields.stream),
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage,
    )


def search_settings(base: SearchSettings, ask: Ask, grown: Extent, *, clusters: bool) -> SearchSettings:
    """Return how the tree of a request grows. Without `clusters` ETS has no term for diversity.

    Raises ApiError for settings that the strategy does not have.
    """
    if ask.strategy is None:
        changes: dict[str, Any] = {
            "strategy": PLAIN, "width": ask.n, "depth": grown.total_tokens, "step_tokens": _PLAIN_STEP, "options": {},
        }  # fmt: skip
        return base.model_copy(update={**changes, "total_tokens": grown.total_tokens, "kv_budget": None})
    details = ask.details
    if ask.n > grown.width:
        raise wrong(f"n is {ask.n}, and the tree has {grown.width} branches: ask for more effort", "n", "invalid_value")
    told = {key: getattr(details, key) for key in ("depth", "step_tokens", "aggregate", "vote")}
    changes = {key: value for key, value in told.items() if value is not None}
    changes |= {
        "strategy": ask.strategy,
        "width": grown.width,
        "total_tokens": grown.total_tokens,
        "kv_budget": None,
        "options": _options(ask.strategy, base.options, details.settings, clusters=clusters),
    }
    return base.model_copy(update=changes)


def _options(strategy: str, known: Mapping[str, Any], told: Mapping[str, Any], *, clusters: bool) -> dict[str, Any]:
    declared = settings_of(registry.find("strategy", strategy))
    for key in told:
        if key not in declared.model_fields:
            near = nearest(key, list(declared.model_fields))
            hint = f". Did you mean {near}?" if near else ""
            raise wrong(f"{strategy} has no setting {one_line(key, 80)!r}{hint}", "palmette", "invalid_value")
    options = {key: value for key, value in known.items() if key in declared.model_fields}
    if not clusters and "lambda_diversity" in declared.model_fields:
        if told.get("lambda_diversity"):
            raise unsupported("palmette", "lambda_diversity needs an embedder, and this gateway has none")
        options["lambda_diversity"] = 0.0
    try:
        return read_settings(declared, {**options, **told}).model_dump(mode="json")
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = one_line(".".join(str(part) for part in fault["loc"]), 80)
        raise wrong(f"palmette.settings.{place}: {fault['msg']}", "palmette", "invalid_value") from None
    except (ValueError, ConfigError) as error:
        raise wrong(f"palmette.settings: {error}", "palmette", "invalid_value") from None


def _messages(given: Sequence[ChatMessage], bounds: Bounds, form: Format | None) -> tuple[tuple[Message, ...], str]:
    """Return the messages to ask and the last one's text. With a form, the last one is put into its words."""
    if len(given) > bounds.messages:
        told = f"{len(given)} messages are over the limit of this gateway, {bounds.messages}"
        raise wrong(told, "messages", "invalid_value")
    messages = [_message(message, place) for place, message in enumerate(given)]
    if messages[-1]["role"] != "user":
        raise wrong(f"the last message is the {messages[-1]['role']}'s: it has to be the user's", "messages")
    question = messages[-1]["content"]
    if form is not None:
        *system, last = form.messages(question)
        begun = [] if messages[0]["role"] == "system" else system
        messages = [*begun, *messages[:-1], last]
    return tuple(messages), question


def _message(message: ChatMessage, place: int) -> Message:
    if message.holds_tools:
        raise unsupported("messages", f"messages.{place}: tool calls are not served")
    role = "system" if message.role == "developer" else message.role
    if role not in ROLES:
        raise wrong(f"messages.{place}: role {one_line(role, 40)!r} is none of {', '.join(ROLES)}", "messages")
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    texts = []
    for part in message.content or ():
        if part.type != "text" or part.text is None:
            raise unsupported("messages", f"messages.{place}: only text is served, not {one_line(part.type, 40)!r}")
        texts.append(part.text)
    if message.content is None:
        raise wrong(f"messages.{place}: content is missing", "messages")
    return {"role": role, "content": "".join(texts)}


def _prompt(prompt: str | list[str]) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) != 1:
        raise unsupported("prompt", f"one prompt a request is served, not {len(prompt)}")
    return prompt[0]


def _stops(stop: str | list[str] | None, bounds: Bounds) -> tuple[str, ...]:
    stops = tuple([stop] if isinstance(stop, str) else stop or ())
    if len(stops) > bounds.stops:
        raise wrong(f"{len(stops)} stops are over the limit of this gateway, {bounds.stops}", "stop", "invalid_value")
    if any(not 0 < len(text) <= bounds.stop_characters for text in stops):
        raise wrong(f"a stop has 1 to {bounds.stop_characters} characters", "stop", "invalid_value")
    return stops


def _temperature(temperature: float | None) -> float | None:
    if temperature is not None and 0 < temperature < 0.01:
        raise wrong("give 0 for the likeliest token, or at least 0.01", "temperature", "invalid_value")
    return temperature
