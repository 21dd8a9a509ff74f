"""What moves between the devices of a cluster in one update: bytes, and seconds by declared bandwidths."""

from dataclasses import dataclass

from palmette.planner.cluster.rank_sizes import gradient_bytes, passes, published_bytes
from palmette.planner.job import Model, UpdateNeeds
from palmette.units import count_of

SAMPLE_TOKEN_BYTES = 16
"""Of every token of a sample its id and its log-probability are sent, 8 bytes each."""


@dataclass(frozen=True)
class Bandwidths:
    """Bytes a second: `link` between two GPUs of a node, `network` into or out of a node."""

    link: float
    network: float


@dataclass(frozen=True)
class Transfer:
    """Bytes that one receiver gets in one update, and how long that takes if nothing else moves."""

    what: str
    receiver: str
    bytes: int
    seconds: float
    by: str
    note: str


def transfers(
    model: Model,
    update: UpdateNeeds,
    *,
    ranks: int,
    learner_nodes: int,
    all_nodes: int,
    bandwidths: Bandwidths,
) -> tuple[Transfer, ...]:
    """Return what one update moves, nothing of it hidden behind computation.

    Collectives run as a ring: every rank receives (ranks - 1) / ranks of what is gathered or reduced, and through each
    node's network goes as much. A broadcast passes on what arrives: it takes as long as one copy.
    """
    moved: list[Transfer] = []
    own, count = (
        (bandwidths.network, "network") if learner_nodes > 1 else (bandwidths.link, "link"),
        passes(update, ranks),
    )
    if ranks > 1:
        reads = len(update.reads) * count
        gathered = (2 * count + reads) * model.weight_bytes * (ranks - 1) // ranks
        note = f"{count_of(count, 'pass', 'passes')} x 2 (forward, backward)"
        note += f" and {count_of(reads, 'pass', 'passes')} that read" if reads else ""
        moved.append(Transfer("weights gathered", "each rank", gathered, gathered / own[0], own[1], note))
        reduced = count * gradient_bytes(model, update) * (ranks - 1) // ranks
        note = count_of(count, "pass", "passes")
        moved.append(Transfer("gradients reduced", "each rank", reduced, reduced / own[0], own[1], note))
    to = (bandwidths.network, "network") if all_nodes > 1 else (bandwidths.link, "link")
    sent = published_bytes(model, update)
    note = "all weights" if update.method == "full" else f"LoRA of rank {update.lora_rank}"
    moved.append(Transfer("new weights", "each rollout node", sent, sent / to[0], to[1], note))
    samples = update.update_tokens * SAMPLE_TOKEN_BYTES
    note = f"{count_of(update.update_tokens, 'token')} at the most, {SAMPLE_TOKEN_BYTES} bytes each"
    moved.append(Transfer("samples", "the learner", samples, samples / to[0], to[1], note))
    return tuple(moved)
