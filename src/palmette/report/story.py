"""From a question's events to its tree as the page draws it."""

from collections.abc import Mapping
from typing import Any

from palmette.events import WaveDone
from palmette.search.answer import Ballot
from palmette.search.rejudge import Rejudge
from palmette.search.replay import Replay
from palmette.settings import SearchSettings


def question_story(one: Replay, settings: SearchSettings, rejudge: Rejudge) -> dict[str, Any]:
    """Return a finished question as JSON values. Lists named for nodes leave out node 0, the prompt."""
    assert one.finished is not None
    nodes = one.tree.nodes[1:]
    return {
        "id": one.started.question,
        "prompt": one.started.prompt,
        "reference": one.started.reference,
        "prompt_tokens": one.started.prompt_tokens,
        "parents": [node.parent for node in nodes],
        "tokens": [len(node.tokens) for node in nodes],
        "texts": [node.text for node in nodes],
        "scores": [node.score for node in nodes],
        "finished": [node.id for node in nodes if node.finished],
        "stopped": _stopped(one, settings),
        "waves": [_wave(one, wave) for wave in one.waves],
        "choices": {vote: [choice.answer, choice.outcome] for vote, choice in one.finished.choices.items()},
        "generated_tokens": one.finished.generated_tokens,
        **_votes(one, settings, rejudge),
    }


def _stopped(one: Replay, settings: SearchSettings) -> list[int]:
    """Return the leaves that a limit ended, not the strategy."""
    found = []
    for leaf in one.tree.leaves():
        node = one.tree.nodes[leaf]
        spent = sum(len(step.tokens) for step in one.tree.steps(leaf))
        if not node.finished and (node.depth >= settings.depth or spent >= settings.total_tokens):
            found.append(leaf)
    return found


def _wave(one: Replay, wave: WaveDone) -> dict[str, Any]:
    """Return the KV tokens of a wave's paths: all of them once each, those on two paths or more, those with copies."""
    return {
        "nodes": len(wave.nodes),
        "children": _pairs(wave.children),
        "clusters": _pairs(wave.clusters),
        "kv": wave.kv_tokens,
        "shared": one.tree.shared_tokens([node.id for node in wave.nodes]),
        "separate": wave.separate_kv_tokens,
    }


def _votes(one: Replay, settings: SearchSettings, rejudge: Rejudge) -> dict[str, Any]:
    """Return a ballot as leaf, answer, weight and candidate; a candidate as its answer's outcome.

    Where the question is gone that is what the run recorded of elected answers, None for others.
    """
    cast = rejudge.ballots(one, settings.aggregate)
    candidates: dict[str, Ballot] = {}
    for ballot in cast:
        candidates.setdefault(ballot.canonical, ballot)
    places = {canonical: place for place, canonical in enumerate(candidates)}
    assert one.finished is not None
    recorded = {choice.answer: choice.outcome for choice in one.finished.choices.values()}
    judged = rejudge.knows(one)
    return {
        "ballots": [[ballot.leaf, ballot.answer, ballot.score, places[ballot.canonical]] for ballot in cast],
        "outcomes": [
            rejudge.outcome(one, ballot) if judged else recorded.get(ballot.answer) for ballot in candidates.values()
        ],
    }


def _pairs(values: Mapping[int, int]) -> list[tuple[int, int]]:
    return list(values.items())
