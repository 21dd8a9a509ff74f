"""Groups of responses to one question each, with their rewards; and the training samples that they become."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from palmette.search.result import SearchResult
from palmette.train.rewards.rewards import Rewarded
from palmette.train.rollout.responses import Response
from palmette.train.samples import Sample


@dataclass(frozen=True)
class Group:
    """The responses to one question with a reward for each, None for a response that nothing rewards."""

    result: SearchResult
    responses: tuple[Response, ...]
    rewards: tuple[float | None, ...]
    parts: dict[str, tuple[float | None, ...]]
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What reward functions logged of each response."""

    @property
    def has_signal(self) -> bool:
        """Whether rewards differ: else no response is better than another."""
        return len({reward for reward in self.rewards if reward is not None}) > 1


def make_groups(results: Sequence[SearchResult], responses: Sequence[Response], rewarded: Rewarded) -> list[Group]:
    """Return one group for each result; `responses` are those of all results, in order."""
    groups: list[Group] = []
    first = 0
    by_question = {result.question.id: result for result in results}
    while first < len(responses):
        name = responses[first].question.id
        last = first
        while last < len(responses) and responses[last].question.id == name:
            last += 1
        parts = {part: tuple(values[first:last]) for part, values in rewarded.parts.items()}
        rewards = tuple(rewarded.totals[first:last])
        columns = {column: tuple(values[first:last]) for column, values in rewarded.columns.items()}
        groups.append(Group(by_question[name], tuple(responses[first:last]), rewards, parts, columns))
        first = last
    return groups


def response_samples(group: Group) -> list[Sample]:
    """Return a sample for each response that has a reward, its advantages 0."""
    tree = group.result.tree
    return [
        Sample(
            prompt=tuple(tree.prompt_tokens),
            response=response.tokens,
            advantages=(0.0,) * len(response.tokens),
            group=group.result.question.id,
            old_logprobs=response.logprobs,
            temperature=tree.temperature,
        )
        for response, reward in zip(group.responses, group.rewards, strict=True)
        if reward is not None
    ]
