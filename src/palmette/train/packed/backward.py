"""Gradients of samples whose tokens form a trie: each slot is computed once forward and once backward.

The loss of a sample is taken in the pass that computes its last slot. It reads log-probabilities of slots above through
leaf tensors, and these slots' keys and values are leaf tensors for the passes below: both collect gradients, with which
the slots above are computed backward once everything below them is done.

Shapes: P predictions of the slots that are held.
"""

import palmette.quiet_torch  # noqa: F401  # isort: skip

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from palmette.train.packed.forward import Outputs, TrieModel
from palmette.train.packed.passes import Step
from palmette.train.packed.trie import Trie


@dataclass(frozen=True)
class Scored:
    """The samples whose last slot a pass has computed, as indices into the trie's order.

    `places_T` are the indices of their counted tokens in `logprobs_P`, `entropies_P` and `values_P`, sample by sample.
    """

    samples: Sequence[int]
    places_T: torch.Tensor
    logprobs_P: torch.Tensor
    entropies_P: torch.Tensor
    values_P: torch.Tensor | None


def run_backward(
    model: TrieModel, trie: Trie, steps: Sequence[Step], loss_of: Callable[[Scored], torch.Tensor]
) -> None:
    """Add the gradients of all samples. `loss_of` is called once for each sample, with others that end in its pass."""
    ending = _samples_by_step(trie, steps)
    held: list[tuple[Outputs, Outputs]] = []
    places = [0] * len(trie.predictions)
    with model.attention():
        for number, step in enumerate(steps):
            if step.kind == "close":
                _backward(*held.pop())
                continue
            above = [leaves for _, leaves in held]
            outputs = model.forward(trie, step.first, step.last, above, is_read=step.kind == "open")
            held.append((outputs, outputs.leaves()))
            offset = sum(len(leaves.logprobs_P) for _, leaves in held[:-1])
            start, stop = trie.at[step.first], trie.at[step.last]
            places[start:stop] = range(offset, offset + stop - start)
            if ending[number]:
                loss_of(_scored(trie, ending[number], places, [leaves for _, leaves in held])).backward()  # type: ignore[no-untyped-call]
            if step.kind == "run":
                _backward(*held.pop())
            del outputs


def run_forward(model: TrieModel, trie: Trie, steps: Sequence[Step], *, values: bool = False) -> list[float]:
    """Return the log-probability of each prediction of the trie, or a critic's value. Gradients have to be off."""
    held: list[Outputs] = []
    found = [0.0] * len(trie.predictions)
    with model.attention():
        for step in steps:
            if step.kind == "close":
                held.pop()
                continue
            outputs = model.forward(trie, step.first, step.last, held, is_read=step.kind == "open")
            told_P = outputs.values_P if values else outputs.logprobs_P
            assert told_P is not None
            found[trie.at[step.first] : trie.at[step.last]] = told_P.tolist()
            if step.kind == "open":
                held.append(outputs)
    return found


def _samples_by_step(trie: Trie, steps: Sequence[Step]) -> list[list[int]]:
    """Return for each step the samples whose last slot it computes forward."""
    by_slot: dict[int, list[int]] = {}
    for sample, path in enumerate(trie.paths):
        by_slot.setdefault(path[-1], []).append(sample)
    return [
        [] if step.kind == "close" else [one for slot in range(step.first, step.last) for one in by_slot.get(slot, ())]
        for step in steps
    ]


def _scored(trie: Trie, samples: Sequence[int], places: Sequence[int], held: Sequence[Outputs]) -> Scored:
    device = held[0].logprobs_P.device
    values = [leaves.values_P for leaves in held if leaves.values_P is not None]
    return Scored(
        samples,
        torch.tensor([places[number] for sample in samples for number in trie.predicted[sample]], device=device),
        torch.cat([leaves.logprobs_P for leaves in held]),
        torch.cat([leaves.entropies_P for leaves in held]),
        torch.cat(values) if values else None,
    )


def _backward(outputs: Outputs, leaves: Outputs) -> None:
    """Compute the pass backward from the gradients that its leaves have collected."""
    roots = [
        (tensor, leaf.grad)
        for tensor, leaf in zip(outputs.tensors(), leaves.tensors(), strict=True)
        if leaf.grad is not None and tensor.requires_grad
    ]
    if roots:
        torch.autograd.backward([tensor for tensor, _ in roots], [grad for _, grad in roots])
