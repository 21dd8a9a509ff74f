"""Requests that no client would send: wrong types, huge numbers, strange characters, deep nesting, broken JSON."""

import json
from random import Random
from typing import Any

_DEEP = 100_000
_TEXTS = (
    "", "\x00", "\ud800", "\u202e\u200b", "𝟙" * 50, "'; DROP TABLE users; --", "../../etc/passwd", "file:///etc/passwd",
    "http://127.0.0.1:1/", "os:system", "<script>alert(1)</script>", "<|im_end|>", "{{7*7}}", "%s%n%x", "a" * 3000,
    "<bos>", "<eos>", "１２", "\n\n\n", "null", "nan",
)  # fmt: skip
_NUMBERS = (
    -1, 0, 1, 2, 3.5, -0.0, 1e308, -1e308, 2**31, 2**63, -(2**63), 2**64, 10**300, 1e-300, True, False,
)  # fmt: skip
_FIELDS = (
    "model", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "seed", "stop", "logprobs", "top_logprobs", "reasoning_effort", "palmette", "tools", "tool_choice", "functions",
    "response_format", "logit_bias", "presence_penalty", "user", "prompt", "echo", "best_of", "suffix", "__class__", "",
)  # fmt: skip
_DETAILS = ("width", "depth", "step_tokens", "aggregate", "vote", "settings", "content", "as_is", "strategy", "path")
_BROKEN = (
    b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b'{"model": NaN}', b'{"model": Infinity}', b"{'model': 1}",
    b'{"model": "script", "messages": [}', b"[" * _DEEP, b'{"a":' * _DEEP, b'{"n": ' + b"9" * 5000 + b"}",
    b"\x00" * 100,
)  # fmt: skip


def _value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(8 if depth < 4 else 5)
    if kind < 2:
        return random.choice(_TEXTS)
    if kind < 4:
        return random.choice(_NUMBERS)
    if kind == 4:
        return None
    if kind == 5:
        return [_value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 6:
        return {random.choice(_TEXTS): _value(random, depth + 1) for _ in range(random.randrange(4))}
    nested: Any = 0
    for _ in range(random.choice((2, 60))):
        nested = [nested] if random.random() < 0.5 else {"x": nested}
    return nested


def _message(random: Random) -> Any:
    message: dict[str, Any] = {
        "role": random.choice(("user", "system", "tool", "king", *_TEXTS)),
        "content": _value(random),
    }
    if random.random() < 0.3:
        message[random.choice(("name", "tool_calls", "x", "refusal"))] = _value(random)
    return message


def body(random: Random, model: str) -> bytes:
    """Return the body of one request. At least one thing is wrong with most of them."""
    if random.random() < 0.1:
        return random.choice(_BROKEN)
    told: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "2+2"}], "max_tokens": 4}
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        told[random.choice(_FIELDS)] = _value(random)
    if random.random() < 0.3:
        told["messages"] = [_message(random) for _ in range(random.randrange(3))]
    if random.random() < 0.3:
        told["palmette"] = {random.choice(_DETAILS): _value(random) for _ in range(2)}
    return json.dumps(told).encode()


def fault_in(status: int, text: str) -> str | None:
    """Return what is wrong with an answer to a fuzzed request, None if it is served or refused as it should be."""
    if status == 200:
        return None
    if not 400 <= status < 500:
        return f"status {status}"
    if "Traceback" in text or 'File "' in text:
        return "a traceback"
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return f"no error in OpenAI's shape: {text[:200]}"
    if set(error) != {"message", "type", "param", "code"} or not isinstance(error["message"], str):
        return f"another shape: {error}"
    return None
