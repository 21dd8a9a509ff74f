"""Scores of a few solutions by a reward model, here or on a server."""

from collections.abc import Sequence
from typing import Any

from palmette.config import load_config
from palmette.run.parts import load_scorer
from palmette.score.scorer import Candidate

QUESTIONS = ("How many hens?", "2+3")
PATHS = (
    (("2+2=4\n",), False),
    (("2+2=4\n", "So 5.\n"), False),
    (("2+2=4\n", "So 5.\n", "done"), True),
    (("x\n",), False),
    ((" 12 + 7 = 19, so the hens are 19.\n", "The answer is 19"), True),
)


def scores(settings: dict[str, Any], questions: Sequence[str] = QUESTIONS) -> list[float]:
    """Return the scores of all solutions to these questions by the reward model of these settings."""
    candidates = [
        Candidate(({"role": "user", "content": question},), steps, finished, question)
        for question in questions
        for steps, finished in PATHS
    ]
    scorer: Any = load_scorer(load_config(None, settings).reward)
    try:
        return list(scorer.score(candidates))
    finally:
        getattr(scorer, "close", lambda: None)()
