"""Checks of what a run recorded: its updates, its questions, the peaks of its phases."""

from palmette.agents.checks.verdict import Verdict, broken, kept
from palmette.agents.subject import Subject
from palmette.train.notices import COLLAPSED_SHARE, CUT_SHARE, SIGNALLESS_UPDATES
from palmette.units import format_bytes


def few_cut(subject: Subject) -> Verdict | None:
    """Few responses are cut at the limit of tokens."""
    shares = [numbers["cut_share"] for numbers in subject.updates if "cut_share" in numbers]
    if not shares:
        return None
    mean = sum(shares) / len(shares)
    if mean > CUT_SHARE:
        limit = subject.config.search.total_tokens if subject.config else None
        setting = f"search.total_tokens {2 * limit}" if limit else "search.total_tokens, twice as many"
        return broken(f"{mean:.0%} of the responses were cut at the limit, above {CUT_SHARE:.0%}", setting)
    return kept(f"{mean:.0%} of the responses were cut at the limit")


def has_signal(subject: Subject) -> Verdict | None:
    """Responses to a question get different rewards."""
    shares = [numbers["signal_share"] for numbers in subject.updates if "signal_share" in numbers]
    if not shares:
        return None
    longest = run = 0
    for share in shares:
        run = 0 if share else run + 1
        longest = max(longest, run)
    if longest >= SIGNALLESS_UPDATES:
        rewards = [numbers["reward"] for numbers in subject.updates if "reward" in numbers]
        mean = f", mean reward {sum(rewards) / len(rewards):.3g}" if rewards else ""
        return broken(f"{longest} updates in a row without a question whose rewards differ{mean}", "search.width 16")
    return kept(f"signal in {sum(share > 0 for share in shares)} of {len(shares)} updates")


def keeps_entropy(subject: Subject) -> Verdict | None:
    """The policy goes on exploring."""
    found = [numbers["entropy"] for numbers in subject.updates if "entropy" in numbers]
    if len(found) < 2:
        return None
    if found[-1] < COLLAPSED_SHARE * found[0]:
        rate = subject.config.train.learning_rate / 3 if subject.config else None
        setting = f"train.learning_rate {rate:.1g}" if rate else "train.entropy_weight 0.001"
        return broken(f"the entropy fell from {found[0]:.3g} to {found[-1]:.3g}", setting)
    return kept(f"the entropy went from {found[0]:.3g} to {found[-1]:.3g}")


def ratios_one(subject: Subject, most: float) -> Verdict | None:
    """The engine that samples and the learner compute the same log-probabilities."""
    found = [abs(numbers["ratio"] - 1) for numbers in subject.updates if "ratio" in numbers]
    if not found:
        return None
    if max(found) > most:
        return broken(f"the mean ratio of a first step is off by {max(found):.2g}, above {most:g}")
    return kept(f"ratios of first steps are 1 within {max(found):.2g}")


def finite_gradients(subject: Subject, most: float) -> Verdict | None:
    """No gradient norm is far above those before it."""
    norms = [numbers["gradient_norm"] for numbers in subject.updates if "gradient_norm" in numbers]
    if len(norms) < 4:
        return None
    for place in range(3, len(norms)):
        before = sorted(norms[:place])[place // 2]
        if before and norms[place] > most * before:
            return broken(
                f"the gradient norm of update {place + 1} is {norms[place]:.3g}, {norms[place] / before:.0f} times the "
                f"median before it",
                "train.max_norm 1.0",
            )
    return kept(f"gradient norms are at most {max(norms):.3g}")


def peaks_within_plan(subject: Subject) -> Verdict | None:
    """No phase held more than was planned."""
    planned = [phase for phase in subject.peaks if phase.planned_bytes]
    above = [phase for phase in planned if phase.peak_bytes > (phase.planned_bytes or 0)]
    if above:
        phase = above[0]
        size, plan = format_bytes(phase.peak_bytes), format_bytes(phase.planned_bytes or 0)
        return broken(f"{phase.name} held {size}, planned were {plan}: give the device that much more (memory.devices)")
    return kept(f"{len(planned)} phases within their plans") if planned else None


def room_enough(subject: Subject, most: float) -> Verdict | None:
    """Few trees end because they have filled their share of the KV budget."""
    if not subject.questions:
        return None
    ended = sum(bool(question.get("out_of_room")) for question in subject.questions)
    share = ended / len(subject.questions)
    if share > most:
        return broken(
            f"{ended} of {len(subject.questions)} trees ended out of room", "search.kv_budget, twice as large"
        )
    return kept(f"{ended} of {len(subject.questions)} trees ended out of room")
