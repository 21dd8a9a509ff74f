"""The task contract: questions, how they are put, how their answers are judged."""

import hashlib
import json
from dataclasses import dataclass, field

Message = dict[str, str]


@dataclass(frozen=True)
class Question:
    """One problem as chat messages, with the answer it should have. `key` is what a scorer of the task's own needs."""

    id: str
    messages: tuple[Message, ...]
    reference: str
    key: dict[str, object] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a fingerprint of everything a model is asked and judged by."""
        whole = json.dumps([self.messages, self.reference, self.key], sort_keys=True)
        return hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Task:
    """Questions in order, the string that ends a step, and the scorer named by `judge` (math, or reasoning-gym's)."""

    name: str
    questions: tuple[Question, ...]
    step_end: str
    judge: str = "math"


@dataclass(frozen=True)
class Format:
    """How a question is put: `prompt` with {question} in it, a system message or none, what ends a step."""

    prompt: str
    step_end: str
    system: str | None = None

    def messages(self, question: str) -> tuple[Message, ...]:
        """Return the chat messages of a question."""
        asked = {"role": "user", "content": self.prompt.replace("{question}", question)}
        return ({"role": "system", "content": self.system}, asked) if self.system else (asked,)
