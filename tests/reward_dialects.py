"""Loopback servers of reward models, with numbers by hash in the place of a model's outputs.

Routes and shapes of answers are those recorded from vLLM 0.32 and SGLang 0.5.23.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.dialects import Manner
from tests.fake_policy import FakeTokenizer

Kind = Literal["tokens", "likelihood", "last", "step", "all"]
"""What a server was started for: a language model, or a head read at the last token, at each tag or at every token."""

SCORES = {
    ("vllm", "tokens"): "/v1/completions",
    ("vllm", "likelihood"): "/v1/completions",
    ("vllm", "last"): "/pooling",
    ("vllm", "step"): "/pooling",
    ("vllm", "all"): "/pooling",
    ("sglang", "tokens"): "/generate",
    ("sglang", "likelihood"): "/generate",
    ("sglang", "last"): "/classify",
}


def outputs_at(tokens: Sequence[int]) -> tuple[float, float]:
    """Return two outputs of the fake model after these tokens, from -3 to 3."""
    digest = hashlib.blake2b(repr(list(tokens)).encode(), digest_size=8).digest()
    first, second = (int.from_bytes(digest[at : at + 4], "big") for at in (0, 4))
    return first / 2**32 * 6 - 3, second / 2**32 * 6 - 3


def logprob_of(tokens: Sequence[int]) -> float:
    """Return the log-probability of the last of these tokens after the others."""
    return outputs_at(tokens)[0] / 3 - 1.2


@dataclass
class FakeReward:
    kind: Kind
    outputs: int = 1
    tag: int | None = None
    missing: int = 0
    """How many rows are left out at the end of an answer."""

    def routes(self, path: str, asked: Any) -> tuple[int, Any] | None:
        if path == "/v1/completions":
            if self.kind not in ("tokens", "likelihood"):
                return 404, {"error": {"message": "The model does not support Completions API", "code": 404}}
            choices = [self._choice(index, prompt, asked) for index, prompt in enumerate(asked["prompt"])]
            return 200, {"choices": self._cut(choices[::-1])}
        if path == "/pooling":
            rows = [{"index": index, "data": self._pooled(row)} for index, row in enumerate(asked["input"])]
            assert asked["use_activation"] is False
            return 200, {"data": self._cut(rows)}
        if path == "/generate" and "input_ids" in asked:
            starts = asked["logprob_start_len"]
            rows = [self._generated(*row, asked) for row in zip(asked["input_ids"], starts, strict=True)]
            return 200, self._cut(rows)
        if path == "/classify":
            return 200, self._cut([{"embedding": self._vector(row), "meta_info": {}} for row in asked["input_ids"]])
        if path == "/tokenize" and "model" not in asked:  # vLLM is told the model's name.
            return 200, {"tokens": FakeTokenizer().encode(asked["prompt"]), "count": 1, "max_model_len": 1}
        return None

    def _cut(self, rows: list[Any]) -> list[Any]:
        return rows[: len(rows) - self.missing] if len(rows) > 1 or self.missing > 1 else rows

    def _vector(self, row: Sequence[int]) -> list[float]:
        return list(outputs_at(row)[: self.outputs])

    def _pooled(self, row: Sequence[int]) -> Any:
        if self.kind == "last":
            return self._vector(row)
        every = [self._vector(row[: place + 1]) for place in range(len(row))]
        return every if self.kind == "all" else [at for at, token in zip(every, row, strict=True) if token == self.tag]

    def _choice(self, index: int, prompt: Sequence[int], asked: Any) -> Any:
        assert asked["max_tokens"] == 1 and asked["temperature"] == 0
        choice: dict[str, Any] = {"index": index, "text": "?"}
        if "prompt_logprobs" in asked:
            told = [{str(token): {"logprob": logprob_of(prompt[: i + 1])}} for i, token in enumerate(prompt)]
            return choice | {"prompt_logprobs": [None, *told[1:]]}
        assert asked["return_tokens_as_token_ids"]
        pairs = zip(asked["logprob_token_ids"], outputs_at(prompt), strict=True)
        top = {f"token_id:{token}": output - 10 for token, output in pairs}
        return choice | {"logprobs": {"top_logprobs": [{"token_id:7": -0.1, **top}]}}

    def _generated(self, row: Sequence[int], start: int, asked: Any) -> Any:
        assert asked["sampling_params"] == {"max_new_tokens": 0, "temperature": 0.0} and asked["return_logprob"]
        told = [[logprob_of(row[: i + 1]), token, None] for i, token in enumerate(row)]
        meta: dict[str, Any] = {"input_token_logprobs": [[None, row[start], None], *told[start + 1 :]]}
        if "token_ids_logprob" in asked:
            pairs = zip(asked["token_ids_logprob"], outputs_at(row), strict=True)
            meta["output_token_ids_logprobs"] = [[[output - 10, token, None] for token, output in pairs]]
        return {"text": "", "output_ids": [], "meta_info": meta}


def reward_manner(dialect: str, reward: FakeReward, **changed: Any) -> Manner:
    """Return how a server of this fake reward model behaves."""
    is_generation = reward.kind in ("tokens", "likelihood")
    writes = SCORES[dialect, reward.kind]
    return Manner(dialect, is_generation=is_generation, writes=writes, routes=reward.routes, **changed)
