"""Ranks train as one process does, whatever their number; their checkpoints go on with any other number.

In float64: in float32 processors add up in other orders, and after five updates weights are 2e-6 to 1e-5 apart.
"""

import os
import random
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from palmette.errors import PalmetteError, RunError
from palmette.scale.learning.ranks import RankLostError
from palmette.scale.learning.weight_parcel import pack, unpack
from palmette.train.checkpoints.shard_files import FOLDER, read_whole
from palmette.train.samples import Sample
from tests.ranks import furthest, plain_learner, ranks_learner, save_weights, trained, trained_seedling

TOKENS = 40
"""Of a micro-batch: an update takes several passes, and ranks have different numbers of them."""


def samples(update: int, count: int = 11) -> list[Sample]:
    """Responses as a rollout has them: with log-probabilities near those that the seedling gives to any text."""
    rng = random.Random(update)
    found = []
    for place in range(count):
        length = rng.randint(1, 9)
        found.append(
            Sample(
                prompt=tuple(rng.randrange(19) for _ in range(rng.randint(1, 6))),
                response=tuple(rng.randrange(19) for _ in range(length)),
                advantages=tuple(rng.gauss(0, 1) for _ in range(length)),
                group=place // 4,
                old_logprobs=tuple(rng.gauss(-9, 0.5) for _ in range(length)),
                reference_logprobs=tuple(rng.gauss(-9, 0.5) for _ in range(length)),
                temperature=0.9,
                weight=rng.choice((0.5, 1.0, 2.0)),
            )
        )
    return found


def test_weights_after_five_updates_are_those_of_one_process(tmp_path: Path) -> None:
    """The issue's measure, and more: results, optimizer state, and what goes on from any of them."""
    plain = plain_learner("full64")
    told = [plain.update(samples(update), micro_batch_tokens=TOKENS) for update in range(5)]
    after_five = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    save_weights(plain.model, tmp_path / "plain")
    save_file(plain.state_dict(), tmp_path / "plain" / "state")
    for count in (1, 2, 4):
        with ranks_learner(count, "full64") as (learner, model, _):
            results = [learner.update(samples(update), micro_batch_tokens=TOKENS) for update in range(5)]
            learner.fetch()
            assert furthest(model, plain.model) < 1e-10, count
            for ours, theirs in zip(results, told, strict=True):
                for name in ("loss", "kl", "entropy", "ratio_low", "ratio_mean", "ratio_high", "gradient_norm"):
                    assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4), (count, name)
                assert ours.response_tokens == theirs.response_tokens
            held = learner.memory()
            weights = sum(weight.nbytes for weight in trained(model).values())
            assert sum(rank["weights"] for rank in held) == weights
            assert weights / count <= max(rank["weights"] for rank in held) <= 1.15 * weights / count
            if count == 2:
                save_weights(model, tmp_path / "two")
                learner.save(tmp_path / "two")
                state = read_whole(tmp_path / "two" / FOLDER)
                assert state.keys() == after_five.keys()
                for name, tensor in after_five.items():
                    assert float((state[name] - tensor).abs().max()) <= 1e-4 * float(tensor.abs().max()), name
    for update in range(5, 7):
        plain.update(samples(update), micro_batch_tokens=TOKENS)
    for count, source in ((4, "two"), (1, "two"), (2, "plain")):
        with ranks_learner(count, "full64", tmp_path / source) as (learner, model, _):
            for update in range(5, 7):
                learner.update(samples(update), micro_batch_tokens=TOKENS)
            learner.fetch()
            assert furthest(model, plain.model) < 1e-10, (count, source)


def test_adapters_are_trained_by_ranks_and_nothing_else_is_sent() -> None:
    plain = plain_learner("lora64")
    before = {name: weight.clone() for name, weight in plain.model.named_parameters()}
    with ranks_learner(2, "lora64") as (learner, model, _):
        for update in range(3):
            plain.update(samples(update), micro_batch_tokens=TOKENS)
            learner.update(samples(update), micro_batch_tokens=TOKENS)
        learner.fetch()
    assert furthest(model, plain.model) < 1e-10
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) != weight.requires_grad, name


def test_more_ranks_than_samples_and_a_rank_that_is_killed() -> None:
    plain = plain_learner("full64")
    plain.update(samples(0, 1), micro_batch_tokens=TOKENS)
    with ranks_learner(2, "full64") as (learner, model, ranks):
        learner.update(samples(0, 1), micro_batch_tokens=TOKENS)
        learner.fetch()
        assert furthest(model, plain.model) < 1e-10
        # What every rank finds wrong is told once, and ranks go on.
        with pytest.raises(PalmetteError, match="temperature"):
            learner.update([replace(samples(0)[0], temperature=0.5)], micro_batch_tokens=TOKENS)
        learner.update(samples(1), micro_batch_tokens=TOKENS)
        os.kill(ranks.pids[1], signal.SIGKILL)
        with pytest.raises(RankLostError, match=re.escape("rank 1 of 2 (process ")) as lost:
            learner.update(samples(2), micro_batch_tokens=TOKENS)
        assert "signal 9" in str(lost.value)


def test_a_parcel_is_used_only_if_it_is_whole_and_the_one_expected() -> None:
    model = trained_seedling("full")
    sent = {name: torch.randn_like(weight) for name, weight in trained(model).items()}
    sent["narrow"] = torch.tensor([1.5, -2.0, 3.25], dtype=torch.bfloat16)
    parcel = pack(sent, 3)
    got = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    for wrong, message in (
        (replace(parcel, version=2), "after update 2, expected were those after 3"),
        (replace(parcel, checksum=parcel.checksum ^ 1), "wrong checksum"),
        (replace(parcel, layout=parcel.layout[1:]), "sent"),
        (replace(parcel, layout=(("narrow", "float32", (3,), 0), *parcel.layout[1:])), "sent"),
    ):
        with pytest.raises(RunError, match=message):
            unpack(wrong, got, 3)
        assert not any(tensor.any() for tensor in got.values())
    frozen = parcel.content.numpy()
    frozen.flags.writeable = False  # As from Ray's object store.
    unpack(replace(parcel, content=frozen), got, 3)
    assert all(torch.equal(got[name], tensor) for name, tensor in sent.items())
