"""What the user of a training run should know: answers cut at the limit, no rewards, no signal, collapsed entropy."""

from collections.abc import Iterator

from palmette.events import Noticed, UpdateDone

CUT_SHARE = 0.2
"""Above this share of responses cut at the limit the reward teaches the policy to be short, not to be right."""

COLLAPSED_SHARE = 0.1
"""Below this share of the first update's entropy the policy writes almost the same every time."""

SIGNALLESS_UPDATES = 3


def notices_of(done: UpdateDone, first_entropy: float | None, without_signal: int) -> Iterator[Noticed]:
    """Yield a notice for each thing that is wrong with this update."""
    numbers = done.numbers
    if numbers["cut_share"] > CUT_SHARE:
        yield Noticed(
            done.update,
            "cut",
            f"{numbers['cut_share']:.0%} of the responses were cut at search.total_tokens and rewarded as far as they "
            f"went: raise it, or leave such responses out with train.mask_cut",
        )
    if numbers["responses"] and numbers["unrewarded"] == numbers["responses"]:
        yield Noticed(
            done.update,
            "reward",
            f"no reward applied to any of the {numbers['responses']:.0f} responses: train.rewards gave None for all of "
            f"them, or failed and was skipped, and nothing is learned",
        )
    if numbers.get("dropped_stale"):
        yield Noticed(
            done.update,
            "stale",
            f"{numbers['dropped_stale']:.0f} responses were not learned from: servers say that they wrote them with "
            f"weights of this run that are older than scale.staleness allows",
        )
    if without_signal >= SIGNALLESS_UPDATES:
        yield Noticed(
            done.update,
            "signal",
            f"for {without_signal} updates all responses to a question had the same reward: nothing is learned",
        )
    if first_entropy and "entropy" in numbers and numbers["entropy"] < COLLAPSED_SHARE * first_entropy:
        yield Noticed(
            done.update,
            "entropy",
            f"the entropy is {numbers['entropy']:.3g}, it was {first_entropy:.3g} in the first update: the policy "
            f"hardly explores any more. Lower train.learning_rate, or set train.entropy_weight or train.kl_weight",
        )
