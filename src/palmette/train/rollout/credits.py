"""From judged groups to samples with advantages: one advantage for each response, or one for each step of a tree."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from palmette.train.algorithms.aggregation import sample_weights
from palmette.train.algorithms.algorithm import Algorithm, Outcome
from palmette.train.credit.credit import Advantages, Credit, CreditTree
from palmette.train.credit.tree_samples import credit_tree, tree_samples
from palmette.train.divergence import penalties
from palmette.train.rollout.groups import Group, response_samples
from palmette.train.samples import Sample


class GivesCredit(Protocol):
    """Turns groups into samples, in two steps: reference and critic are asked between them."""

    @property
    def most_draws(self) -> int:
        """How often questions may be drawn for one update; above 1, groups without a signal are left out."""

    @property
    def pulls(self) -> bool:
        """Whether the loss has terms that teach something where all advantages are 0."""

    def bare(self, groups: Sequence[Group]) -> list[Sample]:
        """Return the samples of all groups in order, their advantages not final."""

    def credited(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples that `bare` returned, with what was added to them, with their advantages and weights."""

    def of_steps(self, groups: Sequence[Group]) -> dict[str, Advantages] | None:
        """Return the advantage of each node by question, None if whole responses are credited."""


class _ByAlgorithm:
    """What both ways to give credit have of the algorithm."""

    def __init__(self, algorithm: Algorithm, limit_tokens: int) -> None:
        self._algorithm = algorithm
        self._limit_tokens = limit_tokens

    @property
    def most_draws(self) -> int:
        """Those of the algorithm."""
        return self._algorithm.draws

    @property
    def pulls(self) -> bool:
        """Whether a KL divergence or an entropy bonus is in the loss, or a critic learns."""
        settings = self._algorithm.settings
        in_loss = settings.kl_weight > 0 and settings.kl_in == "loss"
        return bool(in_loss or settings.entropy_weight > 0 or self._algorithm.critic)

    def _weighed(self, samples: Sequence[Sample]) -> list[Sample]:
        if not samples:
            return []
        tokens = [sample.counted_tokens for sample in samples]
        weights = sample_weights(tokens, self._algorithm.aggregation, self._limit_tokens)
        return [replace(sample, weight=weight) for sample, weight in zip(samples, weights, strict=True)]


class ResponseCredit(_ByAlgorithm):
    """Advantages by an algorithm from the rewards of whole responses.

    With `mask_cut`, responses that a limit ended count in their group and are not learned from.
    """

    def __init__(self, algorithm: Algorithm, *, limit_tokens: int, mask_cut: bool = False) -> None:
        super().__init__(algorithm, limit_tokens)
        self._mask_cut = mask_cut

    def bare(self, groups: Sequence[Group]) -> list[Sample]:
        """Return a sample for each response that has a reward."""
        return [sample for group in groups for sample in response_samples(group)]

    def credited(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples with the algorithm's advantages."""
        left = iter(samples)
        rewarded = [
            [
                (next(left), response, reward)
                for response, reward in zip(group.responses, group.rewards, strict=True)
                if reward is not None
            ]
            for group in groups
        ]
        outcomes = [[self._outcome(sample, reward) for sample, _, reward in group] for group in rewarded]
        credited: list[Sample] = []
        for group, own in zip(rewarded, self._algorithm.token_advantages(outcomes), strict=True):
            for (sample, response, _), given in zip(group, own, strict=True):
                if not (self._mask_cut and response.is_cut):
                    credited.append(replace(sample, advantages=given.advantages, returns=given.returns))
        return self._weighed(credited)

    def of_steps(self, groups: Sequence[Group]) -> dict[str, Advantages] | None:
        """Return None: steps have the advantage of their response."""
        return None

    def _outcome(self, sample: Sample, reward: float) -> Outcome:
        settings, tokens = self._algorithm.settings, len(sample.response)
        lost: tuple[float, ...] = ()
        if settings.kl_in == "reward" and sample.reference_logprobs is not None and sample.old_logprobs is not None:
            lost = penalties(sample.old_logprobs, sample.reference_logprobs, settings.kl_weight, settings.kl)
        shaped = self._algorithm.shaped_reward(reward, tokens, self._limit_tokens)
        return Outcome(shaped, tokens, lost, sample.old_values or ())


class StepCredit(_ByAlgorithm):
    """Advantages of the steps of trees, by a way to credit that goes by the rewards of leaves."""

    def __init__(self, credit: Credit, algorithm: Algorithm, *, limit_tokens: int) -> None:
        super().__init__(algorithm, limit_tokens)
        self._credit = credit

    def bare(self, groups: Sequence[Group]) -> list[Sample]:
        """Return a sample for each step, or path, that has an advantage."""
        return [
            sample
            for group, advantages in zip(groups, self._advantages(groups), strict=True)
            for sample in tree_samples(group.result.tree, advantages, self._credit, group=group.result.question.id)
        ]

    def of_steps(self, groups: Sequence[Group]) -> dict[str, Advantages] | None:
        """Return the advantage of each node by question."""
        return {group.result.question.id: own for group, own in zip(groups, self._advantages(groups), strict=True)}

    def _advantages(self, groups: Sequence[Group]) -> list[Advantages]:
        return self._credit.advantages([self._credit_tree(group) for group in groups])

    def credited(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples with their weights."""
        return self._weighed(samples)

    def _credit_tree(self, group: Group) -> CreditTree:
        """Return the tree of a group with the group's rewards at its leaves, shaped by the algorithm."""
        rewards: dict[int, float] = {
            response.leaf: self._algorithm.shaped_reward(reward, len(response.tokens), self._limit_tokens)
            for response, reward in zip(group.responses, group.rewards, strict=True)
            if reward is not None
        }
        tree = credit_tree(group.result.tree)
        return replace(tree, rewards=tuple(rewards.get(node) for node in range(len(tree.parents))))
