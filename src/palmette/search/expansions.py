"""Which steps to ask for: of a whole wave, or the next one of a branch that does not wait for the others."""

from dataclasses import replace

from palmette.backends.backend import Expansion, Step
from palmette.search.growth import Growth, Limits, node_seed


def of_wave(growth: Growth, limits: Limits, seed: int) -> list[Expansion]:
    """Return the expansions of all granted children. Their handles are the ids that their nodes will have."""
    name, handle = growth.question.id, len(growth.tree.nodes)
    longest = _longest_step(growth, limits)
    expansions: list[Expansion] = []
    for parent, count in growth.grants.items():
        prefix = growth.tree.path_tokens(parent)
        spent = len(prefix) - len(growth.tree.prompt_tokens)
        most_tokens = min(longest, limits.total_tokens - spent)
        for _ in range(count):
            child_seed = node_seed(seed, name, handle)
            expansions.append(
                Expansion(name, parent, prefix, child_seed, most_tokens, handle, limits.step_end, limits.stop)
            )
            handle += 1
    return expansions


def next_of_branch(growth: Growth, above: Expansion, step: Step, limits: Limits, seed: int) -> Expansion | None:
    """Return the expansion that follows this step of `above` on its branch, None if the branch ends here.

    For branches that grow independently of each other. The handle is given by the place in the tree:
    1 + depth x width + branch, both counted from 0.
    """
    assert above.node is not None
    prefix = (*above.prefix, *step.tokens)
    spent = len(prefix) - len(growth.tree.prompt_tokens)
    depth = (above.node - 1) // limits.width + 1
    if not limits.is_open(depth, spent, finished=step.finish == "end"):
        return None
    handle = above.node + limits.width
    return replace(
        above,
        parent=above.node,
        prefix=prefix,
        seed=node_seed(seed, above.question, handle),
        max_tokens=min(limits.step_tokens, limits.total_tokens - spent),
        node=handle,
    )


def handles_of_branch(last: int, limits: Limits) -> list[int]:
    """Return the handles of all steps of an independent branch, from the one that follows the prompt to `last`."""
    return list(range((last - 1) % limits.width + 1, last + 1, limits.width))


def _longest_step(growth: Growth, limits: Limits) -> int:
    """Return the most tokens a step of the next wave may have, so that all of its steps fit into the room.

    The last token of each step counts too: its KV is computed when the branch goes on, and then it has to fit.
    """
    if limits.room is None or not growth.grants:
        return limits.step_tokens
    free = limits.room - growth.tree.distinct_tokens(growth.grants)
    return min(limits.step_tokens, free // sum(growth.grants.values()))
