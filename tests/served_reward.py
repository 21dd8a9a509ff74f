"""A scorer on loopback servers, with the tokenizer of the fake policy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from palmette.backends.servers.served_model import ServedModel
from palmette.profiles.profile import Profile
from palmette.score.rows.profile_prompt import Renderer
from palmette.score.rows.profile_rows import ProfileRows
from palmette.score.rows.row import ChatRows, Rows
from palmette.score.scorer import Candidate
from palmette.score.served.load import _DIALECTS, _of_profile
from palmette.score.served.reading import Head, Likelihood, Reading
from palmette.score.served.scorer import ServedScorer
from palmette.score.values import likelihood, sigmoid
from tests.dialects import Dialect
from tests.fake_policy import BREAK, PIECES, FakeTokenizer
from tests.reward_dialects import FakeReward

GOOD, BAD = PIECES.index("+"), PIECES.index("-")
ROWS = {"layout": "text", "prompt": "{question}\n", "tag": "\n", "tokenized": "apart"}
TOKENS = Profile.model_validate({**ROWS, "read": {"kind": "tokens", "good": "+", "bad": "-"}})
LABELS = Profile.model_validate({**ROWS, "read": {"kind": "labels", "good": 1}})
SERVED = {
    "tokens": FakeReward("tokens"),
    "likelihood": FakeReward("likelihood"),
    "scalar": FakeReward("last"),
    "labels": FakeReward("last", outputs=2),
    "steps": FakeReward("step", outputs=2, tag=BREAK),
    "every token": FakeReward("all", outputs=2),
}
"""Servers by what they serve."""


def rows_and_reading(served: str) -> tuple[Rows, Reading]:
    if served in ("likelihood", "scalar"):
        return ChatRows(FakeTokenizer()), Likelihood() if served == "likelihood" else Head()
    profile = TOKENS if served == "tokens" else LABELS
    renderer = Renderer(profile, FakeTokenizer())
    return ProfileRows(renderer), _of_profile(profile, renderer)


@contextmanager
def scorer_at(
    addresses: Sequence[str], served: str, dialect: str = "vllm", *, rows: int = 64
) -> Iterator[ServedScorer]:
    read, reading = rows_and_reading(served)
    model = ServedModel("reward.model", "fake", "reward.served_model", None, FakeTokenizer(), "/elsewhere/fake")
    scorer = ServedScorer(
        _DIALECTS[dialect](model, reading),
        read,
        likelihood if served == "likelihood" else sigmoid,
        addresses=addresses,
        answer_seconds=600,
        batch_rows=rows,
        skips_empty=served == "likelihood",
    )
    try:
        yield scorer
    finally:
        scorer.close()


@contextmanager
def scorer_of(*servers: Dialect, served: str = "tokens", **settings: Any) -> Iterator[ServedScorer]:
    addresses = [server.address for server in servers]
    with scorer_at(addresses, served, servers[0].manner.dialect, **settings) as scorer:
        yield scorer


def path(*steps: str, question: str = "x+1", finished: bool = False) -> Candidate:
    return Candidate(({"role": "user", "content": question},), steps, finished, question)
