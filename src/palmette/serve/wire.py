"""Answers as OpenAI's clients read them: whole ones, chunks of a stream, token counts. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from palmette.serve.found import Choice

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True)
class Logprobs:
    """The tokens of a returned path, their texts and log-probabilities."""

    texts: Sequence[str]
    logprobs: Sequence[float]

    def for_chat(self) -> dict[str, Any]:
        """Return them as `/v1/chat/completions` does."""
        return {"content": [_token(text, logprob) for text, logprob in zip(self.texts, self.logprobs, strict=True)]}

    def for_text(self) -> dict[str, Any]:
        """Return them as `/v1/completions` does."""
        offsets = [sum(map(len, self.texts[:place])) for place in range(len(self.texts))]
        return {
            "tokens": list(self.texts),
            "token_logprobs": [round(each, 4) for each in self.logprobs],
            "top_logprobs": None,
            "text_offset": offsets,
        }


def _token(text: str, logprob: float) -> dict[str, Any]:
    spelled = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": round(logprob, 4), "bytes": spelled, "top_logprobs": []}


@dataclass(frozen=True)
class Usage:
    """Token counts: `completion` is all that was generated, pruned branches too; of it `reasoning` is not content.

    `cached` of the prompt were in the KV cache when the search began, of another search that had the same beginning.
    """

    prompt: int
    completion: int
    reasoning: int
    cached: int = 0

    def values(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True)
class Head:
    """What all parts of an answer begin with."""

    id: str
    model: str
    created: int
    kind: Literal["chat", "text"]
    fingerprint: str

    def values(self, *, chunk: bool) -> dict[str, Any]:
        """Return it as JSON values."""
        kind = "text_completion" if self.kind == "text" else f"chat.completion{'.chunk' if chunk else ''}"
        values = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**values, "system_fingerprint": self.fingerprint}


def whole_answer(
    head: Head,
    choices: Sequence[Choice],
    vendor: Sequence[Mapping[str, Any]],
    logprobs: Sequence[Logprobs],
    usage: Usage,
) -> dict[str, Any]:
    """Return an answer that is not streamed. `vendor` is the field `palmette` of each choice."""
    made = []
    for index, choice in enumerate(choices):
        values: dict[str, Any] = {"index": index, "finish_reason": choice.finish, "logprobs": None}
        if head.kind == "chat":
            message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
            if choice.reasoning is not None:
                message |= {"reasoning": choice.reasoning, "reasoning_content": choice.reasoning}
            values["message"] = message
        else:
            values["text"] = choice.content
        if logprobs:
            values["logprobs"] = logprobs[index].for_chat() if head.kind == "chat" else logprobs[index].for_text()
        made.append({**values, "palmette": dict(vendor[index])})
    return {**head.values(chunk=False), "choices": made, "usage": usage.values()}


@dataclass
class ChunkWriter:
    """Writes the chunks of a stream; with `include_usage` the last one has the counts and no choice."""

    head: Head
    include_usage: bool
    _begun: set[int] = field(default_factory=set)

    def begin(self, vendor: Mapping[str, Any]) -> bytes:
        """Return the first chunk, with what is known of the search before it has found anything."""
        return self._chunk(0, {"content": ""}, vendor=vendor)

    def reasoning(self, text: str) -> bytes:
        """Return a piece of the reasoning; it has two names among clients."""
        if self.head.kind == "text":
            return KEEP_ALIVE  # The older interface has no place for it.
        return self._chunk(0, {"reasoning": text, "reasoning_content": text})

    def content(self, index: int, text: str, logprobs: Logprobs | None = None) -> bytes:
        """Return a piece of an answer."""
        return self._chunk(index, {"content": text}, logprobs=logprobs)

    def finish(self, index: int, choice: Choice, vendor: Mapping[str, Any]) -> bytes:
        """Return the chunk that ends a choice."""
        return self._chunk(index, {}, finish=choice.finish, vendor=vendor)

    def end(self, usage: Usage) -> bytes:
        """Return the counts, if they are asked for, and the mark of the end."""
        if not self.include_usage:
            return DONE
        return sse({**self.head.values(chunk=True), "choices": [], "usage": usage.values()}) + DONE

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        vendor: Mapping[str, Any] | None = None,
        logprobs: Logprobs | None = None,
    ) -> bytes:
        values: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        if self.head.kind == "chat":
            if index not in self._begun:
                delta = {"role": "assistant", **delta}
            values["delta"] = delta
            if logprobs is not None:
                values["logprobs"] = logprobs.for_chat()
        else:
            values["text"] = delta.get("content", "")
            if logprobs is not None:
                values["logprobs"] = logprobs.for_text()
        self._begun.add(index)
        if vendor is not None:
            values["palmette"] = dict(vendor)
        chunk = {**self.head.values(chunk=True), "choices": [values]}
        return sse({**chunk, "usage": None} if self.include_usage else chunk)


def json_bytes(values: Any) -> bytes:
    """Return JSON in ASCII: also half of a surrogate pair, which a client may have sent, can be written so."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()


def sse(values: Any) -> bytes:
    """Return values as one event of a stream."""
    return b"data: " + json_bytes(values) + b"\n\n"
