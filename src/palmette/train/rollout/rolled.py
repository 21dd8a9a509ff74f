"""The rollouts of one update: questions searched, responses rewarded, gathered in groups."""

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from palmette.settings import Aggregate, TrainSettings
from palmette.train.rewards.signature import TrainerState
from palmette.train.rollout.groups import Group, make_groups
from palmette.train.rollout.responses import responses_of
from palmette.train.training_parts import TrainingParts


@dataclass(frozen=True)
class Rolled:
    """What an update learns from, with statistics: draws of questions, failed rewards, what functions logged.

    Responses of weights that are too old are not in it, `dropped_stale` counts them.

    `position` is where in the order of questions it ended. `version` is the number of updates that the weights had
    behind them which wrote it.
    """

    groups: list[Group]
    numbers: dict[str, float]
    position: int
    version: int


def roll_out(
    parts: TrainingParts,
    settings: TrainSettings,
    *,
    update: int,
    position: int,
    version: int,
    seed: int,
    aggregate: Aggregate,
) -> Rolled:
    """Return the groups of an update, the next questions from this position on.

    An algorithm that leaves out groups without a signal draws further questions in their place, a limited number of
    times.
    """
    groups: list[Group] = []
    draws = failed = dropped = 0
    logged: dict[str, list[float]] = {}
    while not draws or (draws < parts.credit.most_draws and _with_signal(groups) < settings.questions):
        questions, position = parts.order.take(position, settings.questions)
        results = parts.roll_out(questions, _rollout_seed(seed, update, draws))
        too_old = () if parts.too_old is None else parts.too_old(update - parts.staleness)
        dropped += sum(len(responses_of(result, aggregate)) for result in results if result.question.id in too_old)
        results = [result for result in results if result.question.id not in too_old]
        responses = [response for result in results for response in responses_of(result, aggregate)]
        epoch = position / max(1, len(parts.order))
        rewarded = parts.rewards.of(responses, TrainerState(update, settings.updates, epoch))
        groups += make_groups(results, responses, rewarded)
        failed += rewarded.failed
        draws += 1
        for name, values in rewarded.metrics.items():
            logged.setdefault(f"metric {name}", []).extend(values)
    means = {name: statistics.fmean(values) for name, values in logged.items()}
    numbers = {"draws": float(draws), "failed_rewards": float(failed), **means}
    if parts.too_old is not None:
        numbers["dropped_stale"] = float(dropped)
    return Rolled(groups, numbers, position, version)


def _with_signal(groups: Sequence[Group]) -> int:
    return sum(group.has_signal for group in groups)


def _rollout_seed(seed: int, update: int, draw: int) -> int:
    digest = hashlib.blake2b(f"{seed}\0{update}\0{draw}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
