"""What driver and rollout workers send each other beside weights, as JSON: a phase, results with all their digits."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from palmette.errors import RunError
from palmette.search.answer import Ballot
from palmette.search.result import Choice, SearchResult
from palmette.tasks.task import Question
from palmette.tree import Node, Tree

Kind = Literal["rollout", "evaluation"]


@dataclass(frozen=True)
class Phase:
    """Questions that are searched with one seed and one version of the weights, in the way of their kind.

    `task` is what `task_text` returns, `room` the KV tokens that a tree may hold.
    """

    number: int
    kind: Kind
    seed: int
    version: int
    room: int | None
    task: str

    def text(self) -> str:
        """Return the phase for a worker."""
        return json.dumps(asdict(self))


def phase_of(text: str) -> Phase:
    """Return the phase that `Phase.text` wrote."""
    return Phase(**json.loads(text))


_SENT = (
    "strategy", "width", "vote", "choices", "ballots", "tokens", "mean_kv_tokens", "peak_kv_tokens",
    "unshared_kv_tokens", "waves", "out_of_room", "tree",
)  # fmt: skip


def result_values(result: SearchResult) -> dict[str, Any]:
    """Return a result as JSON values, numbers as they are: events would round log-probabilities."""
    values = result.to_dict()
    return {"question": result.question.id, **{name: values[name] for name in _SENT}}


def result_of(values: Mapping[str, Any], questions: Mapping[str, Question], who: str) -> SearchResult:
    """Return the result that `result_values` wrote. Raises RunError, with `who` told it, for anything else."""
    try:
        told = {name: values[name] for name in _SENT}
        told["choices"] = {vote: Choice(**choice) for vote, choice in told["choices"].items()}
        told["ballots"] = tuple(Ballot(**ballot) for ballot in told["ballots"])
        return SearchResult(question=questions[values["question"]], **{**told, "tree": _tree(told["tree"])})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{who} told of a result that is none: {type(error).__name__} {error}") from error


def _tree(values: Mapping[str, Any]) -> Tree:
    prompt = tuple(values["prompt_tokens"])
    root = Node(0, None, 0, prompt, "", (), finished=False, state="kept")
    steps = [
        Node(**{**step, "tokens": tuple(step["tokens"]), "logprobs": tuple(step["logprobs"])})
        for step in values["steps"]
    ]
    if [step.id for step in steps] != list(range(1, len(steps) + 1)):
        raise ValueError("ids of nodes are not their places")
    return Tree(prompt, [root, *steps], float(values["temperature"]))
