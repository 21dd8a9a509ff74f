"""Advantages and losses of our algorithms against the functions of TRL and verl themselves, on random updates.

    make bench-algorithms

Runs in an environment that has TRL and verl. Both pad responses to rows with a mask; ours are lists of tokens. A row is
the largest difference over all updates: of an advantage, of the loss, or of the loss's gradient in a log-probability.
Ends with exit code 1 if one is above 1e-5. TRL computes advantages in the midst of its rollout, where they cannot be
called alone, so advantages are compared with verl; its losses are called as methods of a trainer that has nothing but
the settings. Neither library has MaxRL or DAPO's shaping as a function.
"""

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from trl import GRPOTrainer, RLOOTrainer
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from palmette.train.algorithms.aggregation import sample_weights
from palmette.train.algorithms.algorithm import Algorithm, Outcome
from palmette.train.algorithms.cispo import Cispo, CispoSettings
from palmette.train.algorithms.dapo import Dapo
from palmette.train.algorithms.dr_grpo import DrGrpo, DrGrpoSettings
from palmette.train.algorithms.grpo import Grpo, GrpoSettings
from palmette.train.algorithms.gspo import Gspo, GspoSettings
from palmette.train.algorithms.ppo import Ppo, PpoSettings
from palmette.train.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusSettings
from palmette.train.algorithms.rloo import Rloo, RlooSettings
from palmette.train.divergence import Estimator, penalties
from palmette.train.update.loss import LossSettings, divergences, token_losses, value_losses
from palmette.train.update.token_batch import TokenBatch

TOLERANCE = 1e-5
LIMIT_TOKENS = 40
Loss = Callable[[torch.Tensor], torch.Tensor]
"""A loss of padded log-probabilities."""

ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3")


@dataclass(frozen=True)
class Update:
    """A random update: groups of responses, each with a number for every token."""

    groups: list[int]
    """The group of each response."""
    lengths: list[int]
    rewards: list[float]
    logprobs: list[list[float]]
    old: list[list[float]]
    reference: list[list[float]]
    values: list[list[float]]
    old_values: list[list[float]]
    entropies: list[list[float]]
    advantages: list[float]

    def padded(self, rows: list[list[float]]) -> torch.Tensor:
        """Return numbers of tokens as rows padded with 0."""
        longest = max(self.lengths)
        return torch.tensor([row + [0.0] * (longest - len(row)) for row in rows], dtype=torch.float64)

    @property
    def mask(self) -> torch.Tensor:
        """1 for tokens, 0 for padding."""
        return self.padded([[1.0] * length for length in self.lengths])

    def last_rewards(self, taken: list[list[float]] | None = None) -> torch.Tensor:
        """Return the rewards at the last tokens, less what is taken from each token."""
        rows = [[0.0] * (length - 1) + [reward] for length, reward in zip(self.lengths, self.rewards, strict=True)]
        return self.padded(rows) - (0 if taken is None else self.padded(taken))

    def outcomes(self, taken: list[list[float]] | None = None) -> list[list[Outcome]]:
        """Return the responses as our algorithms take them."""
        found: dict[int, list[Outcome]] = defaultdict(list)
        for place, group in enumerate(self.groups):
            lost = () if taken is None else tuple(taken[place])
            found[group].append(Outcome(self.rewards[place], self.lengths[place], lost, tuple(self.old_values[place])))
        return list(found.values())

    def kl_taken(self, weight: float) -> list[list[float]]:
        """Return k1 times a weight for each token."""
        pairs = zip(self.old, self.reference, strict=True)
        return [list(penalties(old, reference, weight, "k1")) for old, reference in pairs]

    def tokens(self, logprobs_T: torch.Tensor) -> TokenBatch:
        """Return all tokens as one batch with these log-probabilities."""
        sequence = [row for row, length in enumerate(self.lengths) for _ in range(length)]
        return TokenBatch(
            logprobs_T,
            flat(self.entropies),
            torch.tensor([self.advantages[row] for row in sequence], dtype=torch.float64),
            flat(self.old),
            flat(self.reference),
            torch.tensor(sequence),
        )


def flat(rows: list[list[float]]) -> torch.Tensor:
    """Return numbers of tokens in one row."""
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def random_update(seed: int) -> Update:
    """Return 3 to 5 groups of 2 to 6 responses of 1 to 30 tokens; the policy has moved by about 0.3 in logs."""
    generator = random.Random(seed)
    groups = [group for group in range(generator.randint(3, 5)) for _ in range(generator.randint(2, 6))]
    lengths = [generator.randint(1, 30) for _ in groups]

    def numbers(draw: Callable[[], float]) -> list[list[float]]:
        return [[draw() for _ in range(length)] for length in lengths]

    old = numbers(lambda: -generator.expovariate(1.0))

    def near(spread: float) -> list[list[float]]:
        return [[value + generator.gauss(0, spread) for value in row] for row in old]

    return Update(
        groups=groups,
        lengths=lengths,
        rewards=[generator.choice([0.0, 1.0, generator.random()]) for _ in groups],
        logprobs=near(0.3),
        old=old,
        reference=near(0.5),
        values=numbers(lambda: generator.gauss(0.5, 0.6)),
        old_values=numbers(lambda: generator.gauss(0.5, 0.6)),
        entropies=numbers(generator.random),
        advantages=[generator.gauss(0, 1) for _ in groups],
    )


def same_tokens(update: Update, theirs: torch.Tensor, ours: list[list[float]]) -> float:
    """Return the largest difference between numbers of tokens."""
    return float(((theirs - update.padded(ours)) * update.mask).abs().max())


def by_tokens(algorithm: Algorithm, groups: list[list[Outcome]]) -> list[list[float]]:
    """Return our advantages of all tokens, a row for each response."""
    return [list(found.advantages) for group in algorithm.token_advantages(groups) for found in group]


def advantages(update: Update) -> Iterator[tuple[str, float]]:
    """Compare advantages with verl's."""
    mask, index = update.mask, np.array(update.groups)
    rewards, groups = update.last_rewards(), update.outcomes()
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, index, epsilon=1e-6)
    yield "grpo: advantage, verl", same_tokens(update, theirs, by_tokens(Grpo(GrpoSettings(std_epsilon=1e-6)), groups))
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=False)
    yield "dr_grpo: advantage, verl", same_tokens(update, theirs, by_tokens(DrGrpo(), groups))
    theirs, _ = core_algos.compute_rloo_outcome_advantage(rewards, mask, index)
    yield "rloo: advantage, verl", same_tokens(update, theirs, by_tokens(Rloo(), groups))
    taken = update.kl_taken(0.01)
    rewards, groups = update.last_rewards(taken), update.outcomes(taken)
    for discount in (1.0, 0.9):
        theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
            rewards, mask, SimpleNamespace(gamma=discount)
        )
        ours = by_tokens(ReinforcePlusPlus(ReinforcePlusPlusSettings(discount=discount)), groups)
        yield f"reinforce_plus_plus, discount {discount}, verl", same_tokens(update, theirs, ours)
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, index)
    ours = by_tokens(ReinforcePlusPlus(ReinforcePlusPlusSettings(group_baseline=True)), groups)
    yield "reinforce_plus_plus with group_baseline: advantage, verl", same_tokens(update, theirs, ours)
    for discount, decay in ((1.0, 1.0), (0.99, 0.95)):
        theirs, returns = core_algos.compute_gae_advantage_return(
            rewards, update.padded(update.old_values), mask, discount, decay
        )
        ppo = Ppo(PpoSettings(discount=discount, gae_decay=decay))
        name = f"discount {discount}, decay {decay}, verl"
        yield f"ppo advantage, {name}", same_tokens(update, theirs, by_tokens(ppo, groups))
        found = [list(one.returns or ()) for group in ppo.token_advantages(groups) for one in group]
        yield f"ppo return, {name}", same_tokens(update, returns, found)


def our_loss(update: Update, algorithm: Algorithm) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of the update as the learner computes it, and its gradient in the log-probabilities."""
    logprobs_T = flat(update.logprobs).requires_grad_()
    tokens = update.tokens(logprobs_T)
    losses = token_losses(tokens, algorithm.loss(), algorithm.token_losses)
    weights = sample_weights(update.lengths, algorithm.aggregation, LIMIT_TOKENS)
    weights_T = torch.tensor(weights, dtype=torch.float64)[tokens.sequence_T]
    loss = (losses.loss_T * weights_T).sum() / sum(update.lengths)
    return loss, torch.autograd.grad(loss, logprobs_T)[0]


def loss_difference(update: Update, algorithm: Algorithm, theirs: Loss) -> tuple[float, float]:
    """Return how far their loss of padded log-probabilities is from ours, and its gradient."""
    logprobs_RL = update.padded(update.logprobs).requires_grad_()
    loss = theirs(logprobs_RL)
    gradient_RL = torch.autograd.grad(loss, logprobs_RL)[0]
    own, gradient_T = our_loss(update, algorithm)
    away = (gradient_RL[update.mask.bool()] - gradient_T).abs().max()
    return float((loss - own).detach().abs()), float(away)


def trl_loss(
    update: Update, kind: str, *, level: str = "token", low: float = 0.2, high: float = 0.2, delta: float | None = None,
    beta: float = 0.0, entropy: float = 0.0,
) -> Loss:  # fmt: skip
    """Return TRL's GRPO loss as a function of log-probabilities."""
    trainer = trainer_of(
        update,
        loss_type=kind, importance_sampling_level=level, epsilon_low=low, epsilon_high=high, beta=beta,
        entropy_coef=entropy, _entropy_bonus_enabled=entropy != 0, use_adaptive_entropy=False,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False, max_completion_length=LIMIT_TOKENS,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
    )  # fmt: skip
    extra = {
        "old_per_token_logps": update.padded(update.old),
        "ref_per_token_logps": update.padded(update.reference),
        "num_items_in_batch": update.mask.sum(),
    }
    return lambda logprobs_RL: GRPOTrainer._compute_loss(
        trainer_with(trainer, update, logprobs_RL), trainer.model, {**inputs_of(update), **extra}
    )


def rloo_loss(update: Update) -> Loss:
    """Return TRL's RLOO loss as a function of log-probabilities."""
    trainer = trainer_of(update, epsilon_low=0.2, epsilon_high=0.2)
    extra = {"old_logps": update.padded(update.old).sum(1)}
    return lambda logprobs_RL: RLOOTrainer._compute_loss(
        trainer_with(trainer, update, logprobs_RL), trainer.model, {**inputs_of(update), **extra}
    )


def trainer_of(update: Update, **settings: Any) -> SimpleNamespace:
    """Return what a loss of TRL reads of its trainer."""
    accelerator = SimpleNamespace(
        num_processes=1, sync_gradients=True, gather=lambda value: value, gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
    )  # fmt: skip
    metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}
    model = SimpleNamespace(training=True)
    return SimpleNamespace(accelerator=accelerator, _metrics=metrics, model=model, aux_loss_enabled=False, **settings)


def trainer_with(trainer: SimpleNamespace, update: Update, logprobs_RL: torch.Tensor) -> SimpleNamespace:
    """Return the trainer with a model that gives these log-probabilities."""
    found = logprobs_RL, update.padded(update.entropies), None
    trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: found
    return trainer


def inputs_of(update: Update) -> dict[str, torch.Tensor]:
    """Return the inputs of a loss of TRL; prompts are one token."""
    ones = torch.ones(len(update.lengths), 1, dtype=torch.long)
    return {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": update.mask.long(),
        "completion_mask": update.mask,
        "advantages": torch.tensor(update.advantages, dtype=torch.float64),
    }


def verl_loss(update: Update, name: str, mode: str, **settings: float) -> Loss:
    """Return one of verl's policy losses as a function of log-probabilities."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        global_batch_info={"loss_scale_factor": LIMIT_TOKENS}, **settings,
    )  # fmt: skip
    rows = zip(update.advantages, update.lengths, strict=True)
    given = update.padded([[number] * length for number, length in rows]), update.mask, mode, config
    loss_of = core_algos.get_policy_loss_fn(name)
    return lambda logprobs_RL: loss_of(update.padded(update.old), logprobs_RL, *given)[0]


def losses(update: Update) -> Iterator[tuple[str, float]]:
    """Compare losses with TRL's and verl's, values and gradients."""
    shared = Grpo(GrpoSettings(kl_weight=0.04, entropy_weight=0.01))
    both_clips = Grpo(GrpoSettings(clip_high=0.28, dual_clip=1.3))
    wide = Gspo(GspoSettings(clip_low=0.2, clip_high=0.2))
    capped = Cispo(CispoSettings(cap=1.2))
    by_trl: list[tuple[str, Algorithm, Loss]] = [
        ("grpo, KL 0.04, entropy 0.01", shared, trl_loss(update, "dapo", beta=0.04, entropy=0.01)),
        ("grpo by sequence", Grpo(GrpoSettings(aggregation="sequence")), trl_loss(update, "grpo")),
        ("grpo, dual clip 1.3", Grpo(GrpoSettings(dual_clip=1.3)), trl_loss(update, "dapo", delta=1.3)),
        ("dr_grpo, KL 0.04", DrGrpo(DrGrpoSettings(kl_weight=0.04)), trl_loss(update, "dr_grpo", beta=0.04)),
        ("dapo", Dapo(), trl_loss(update, "dapo", high=0.28)),
        ("gspo", Gspo(), trl_loss(update, "grpo", level="sequence", low=3e-4, high=4e-4)),
        ("gspo, clip 0.2", wide, trl_loss(update, "grpo", level="sequence")),
        ("cispo, cap 1.2", capped, trl_loss(update, "cispo", high=1.2)),
        ("rloo", Rloo(RlooSettings(kl_weight=0.0)), rloo_loss(update)),
    ]
    vanilla = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1.3}
    narrow = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    cap = {"clip_ratio_low": 1.0, "clip_ratio_high": 0.2}  # verl clips the weight to 0 ... 1.2.
    by_verl: list[tuple[str, Algorithm, Loss]] = [
        ("grpo, clips 0.2, 0.28, 1.3", both_clips, verl_loss(update, "vanilla", "token-mean", **vanilla)),
        ("dr_grpo", DrGrpo(), verl_loss(update, "vanilla", "seq-mean-token-sum-norm", clip_ratio_c=1e6)),
        ("gspo", Gspo(), verl_loss(update, "gspo", "seq-mean-token-mean", **narrow)),
        ("cispo, cap 1.2", capped, verl_loss(update, "cispo", "token-mean", **cap)),
    ]
    named = [("TRL", *pair) for pair in by_trl] + [("verl", *pair) for pair in by_verl]
    for peer, name, algorithm, theirs in named:
        value, gradient = loss_difference(update, algorithm, theirs)
        yield f"{name}: loss, {peer}", value
        yield f"{name}: gradient, {peer}", gradient


def shared_terms(update: Update) -> Iterator[tuple[str, float]]:
    """Compare KL estimators and the value loss with verl's."""
    logprobs_T, reference_T = flat(update.logprobs), flat(update.reference)
    for estimator in ESTIMATORS:
        theirs = core_algos.kl_penalty_forward(logprobs_T, reference_T, estimator)
        yield f"KL {estimator}: verl", float((theirs - divergences(logprobs_T, reference_T, estimator)).abs().max())
    theirs, _ = core_algos.compute_value_loss(
        update.padded(update.values),
        update.padded(update.reference),
        update.padded(update.old_values),
        update.mask,
        0.5,
    )
    ours = value_losses(flat(update.values), flat(update.old_values), reference_T, 0.5).mean()
    yield "ppo value loss, clip 0.5: verl", float((theirs - ours).abs())
    batch = replace(
        update.tokens(logprobs_T),
        values_T=flat(update.values), old_values_T=flat(update.old_values), returns_T=reference_T,
    )  # fmt: skip
    whole = token_losses(batch, LossSettings(value_weight=1.0, value_clip=0.5)).loss_T
    without = token_losses(batch, LossSettings()).loss_T
    yield "ppo value term of the whole loss: verl", float((theirs - (whole - without).mean()).abs())


def main() -> int:
    """Print the largest difference of each comparison; return 1 if one is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200)
    updates = parser.parse_args().updates
    largest: dict[str, float] = {}
    for seed in range(updates):
        update = random_update(seed)
        for part in (advantages, losses, shared_terms):
            for name, difference in part(update):
                largest[name] = max(largest.get(name, 0.0), difference)
    width = max(map(len, largest))
    for name, difference in largest.items():
        print(f"{name:<{width}}  {difference:.1e}{'' if difference <= TOLERANCE else '  TOO FAR'}")
    too_far = [name for name, difference in largest.items() if not difference <= TOLERANCE]
    print(f"{len(largest)} comparisons on {updates} updates, {len(too_far)} above {TOLERANCE}")
    return 1 if too_far else 0


if __name__ == "__main__":
    sys.exit(main())
