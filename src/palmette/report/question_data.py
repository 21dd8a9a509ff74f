"""Turns a replayed question into the data that the page draws: its tree, waves and votes."""

from collections.abc import Mapping
from typing import Any

from palmette.events import WaveDone
from palmette.search.answer import Ballot
from palmette.search.rejudge import Rejudge
from palmette.search.replay import Replay
from palmette.settings import SearchSettings


def question_data(replayed: Replay, settings: SearchSettings, rejudge: Rejudge) -> dict[str, Any]:
    """Return a finished question as JSON values: its tree, and the votes of its leaves."""
    assert replayed.finished is not None
    return {
        **tree_data(replayed, settings),
        "choices": {vote: [choice.answer, choice.outcome] for vote, choice in replayed.finished.choices.items()},
        **_votes(replayed, settings, rejudge),
    }


def tree_data(replayed: Replay, settings: SearchSettings) -> dict[str, Any]:
    """Return the tree of a question as JSON values, as far as it has grown.

    Lists with an entry for each node leave out node 0, the prompt.
    """
    nodes = replayed.tree.nodes[1:]
    return {
        "id": replayed.started.question,
        "prompt": replayed.started.prompt,
        "reference": replayed.started.reference,
        "prompt_tokens": replayed.started.prompt_tokens,
        "parents": [node.parent for node in nodes],
        "tokens": [len(node.tokens) for node in nodes],
        "texts": [node.text for node in nodes],
        "scores": [node.score for node in nodes],
        "finished": [node.id for node in nodes if node.finished],
        "stopped": _stopped(replayed, settings),
        "waves": [_wave(replayed, wave) for wave in replayed.waves],
        "generated_tokens": replayed.tree.generated_tokens(),
    }


def _stopped(replayed: Replay, settings: SearchSettings) -> list[int]:
    """Return the leaves that were stopped by `depth` or `total_tokens`, not pruned by the strategy."""
    found = []
    for leaf in replayed.tree.leaves():
        node = replayed.tree.nodes[leaf]
        spent = sum(len(step.tokens) for step in replayed.tree.steps(leaf))
        if not node.finished and (node.depth >= settings.depth or spent >= settings.total_tokens):
            found.append(leaf)
    return found


def _wave(replayed: Replay, wave: WaveDone) -> dict[str, Any]:
    """Return one wave as JSON values.

    `kv` counts the KV tokens held for the branches that the wave has written, every distinct prefix once; `shared`
    those of them on two or more branches; `separate` the tokens of all branches in full.
    """
    counts = replayed.tree.kv_counts(node.id for node in wave.nodes)
    return {
        "nodes": len(wave.nodes),
        "children": _pairs(wave.children),
        "clusters": _pairs(wave.clusters),
        "kv": counts.held,
        "shared": counts.shared,
        "separate": counts.unshared,
    }


def _votes(replayed: Replay, settings: SearchSettings, rejudge: Rejudge) -> dict[str, Any]:
    """Return `ballots`, each as [leaf, answer, score, candidate], and `outcomes`, one for each candidate.

    A candidate is a distinct answer, numbered in the order of its oldest leaf. If the question is no longer in the
    task, the outcome of an elected answer is the recorded replayed, that of any other None.
    """
    votes = rejudge.ballots(replayed, settings.aggregate)
    candidates: dict[str, Ballot] = {}
    for ballot in votes:
        candidates.setdefault(ballot.canonical, ballot)
    places = {canonical: place for place, canonical in enumerate(candidates)}
    assert replayed.finished is not None
    recorded = {choice.answer: choice.outcome for choice in replayed.finished.choices.values()}
    can_judge = rejudge.knows(replayed)
    return {
        "ballots": [[ballot.leaf, ballot.answer, ballot.score, places[ballot.canonical]] for ballot in votes],
        "outcomes": [
            rejudge.outcome(replayed, ballot) if can_judge else recorded.get(ballot.answer)
            for ballot in candidates.values()
        ],
    }


def _pairs(values: Mapping[int, int]) -> list[tuple[int, int]]:
    return list(values.items())
