"""The fields of a request: read strictly, and what the gateway does not do is refused by its name."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palmette.serve.refusals import ApiError, unsupported, wrong
from palmette.settings import Aggregate, Vote
from palmette.units import one_line

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
_SEEDS = 2**63
_Count = Annotated[int, Field(ge=1, le=10**7)]

_WITHOUT_EFFECT = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
}  # fmt: skip
"""Fields that change nothing in an answer."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "logit_bias": ({},), "presence_penalty": (0,), "frequency_penalty": (0,),
    "top_logprobs": (0,), "modalities": (["text"],), "audio": (), "prediction": (), "web_search_options": (),
    "verbosity": ("medium",), "best_of": (1,), "echo": (False,), "suffix": ("",),
}  # fmt: skip
"""Fields of OpenAI's interface that are not served, with the values that ask for nothing; null is another one."""

_WHY = {
    "tools": "tool calls are not served: leave tools out",
    "functions": "function calls are not served: leave functions out",
    "top_logprobs": "only the tokens that were written have log-probabilities here: set top_logprobs to 0",
    "response_format": "only text is served: leave response_format out",
}


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Fields):
    """What is sent at the end of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Details(_Fields):
    """The field `palmette` (`extra_body={"palmette": {...}}`): details of the search."""

    width: _Count | None = None
    depth: _Count | None = None
    step_tokens: _Count | None = None
    aggregate: Aggregate | None = None
    vote: Vote | None = None
    settings: dict[str, bool | int | float | str | list[int] | None] = Field(default_factory=dict, max_length=16)
    """The strategy's own settings, such as lambda_kv."""
    content: Literal["answer", "solution"] = "answer"
    """What `content` holds: the elected answer alone, or its whole solution."""
    as_is: bool = False
    """Whether the last message is asked as it is, without the gateway's words on how to answer."""


class _Shared(_Fields):
    model: Annotated[str, Field(min_length=1, max_length=500)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-_SEEDS, lt=_SEEDS)] | None = None
    stop: str | list[str] | None = None
    palmette: Details | None = None


class Part(_Fields):
    """A part of a message; only texts are served."""

    type: str
    text: str | None = None


class ChatMessage(_Fields):
    """A message of a chat. An answer may be sent back as it came: what else it held is not read, but for tool calls."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None
    reasoning: Any = None
    reasoning_content: Any = None

    @property
    def holds_tools(self) -> bool:
        """Whether the message is part of a tool call."""
        told = (self.tool_calls, self.tool_call_id, self.function_call)
        return self.role in ("tool", "function") or any(each is not None for each in told)


class ChatFields(_Shared):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    reasoning_effort: Effort | None = None


class TextFields(_Shared):
    """The body of `/v1/completions`."""

    prompt: str | list[str]
    logprobs: Annotated[int, Field(ge=0, le=0)] | None = None


Body = TypeVar("Body", bound=BaseModel)


def read_fields(shape: type[Body], body: Any) -> Body:
    """Return the fields of a body. Raises ApiError for the first fault; what is not served is refused by name."""
    if not isinstance(body, Mapping):
        raise wrong("the body has to be a JSON object", None)
    kept = {}
    for key, value in body.items():
        if key in shape.model_fields:
            kept[key] = value
        elif key in _NEUTRAL and not _is_neutral(key, value):
            raise unsupported(key, _WHY.get(key, f"{key} is not served: leave it out"))
        elif key not in _NEUTRAL and key not in _WITHOUT_EFFECT:
            raise ApiError(400, f"unknown field: {one_line(key, 80)}", one_line(key, 80), "unknown_parameter")
    try:
        return shape.model_validate(kept)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = one_line(".".join(str(part) for part in fault["loc"]), 120)
        raise wrong(f"{place}: {fault['msg']}", place.split(".")[0], "invalid_type") from None


def _is_neutral(key: str, value: Any) -> bool:
    if value is None:
        return True
    return any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in _NEUTRAL[key])
