"""What the questions of a recorded search were made of: steps by wave, their lengths, the prefixes that they share."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palmette.config import recorded_config
from palmette.errors import RunError
from palmette.event_log import FILE_NAME, read_events
from palmette.events import (
    Event,
    NodeRecord,
    Occupancy,
    QuestionFinished,
    QuestionStarted,
    RunStarted,
    Session,
    UpdateDone,
    WaveDone,
)
from palmette.settings import Config


@dataclass(frozen=True)
class Wave:
    """The steps of one wave by their tokens.

    `prefixes` are the tokens of the path that each continues, `held_tokens` those of all paths, shared ones once.
    `shared` is for how many ticks each is computed as one lane with another, since their texts are the same so far;
    empty where all differ from the first token on.
    """

    steps: tuple[int, ...]
    prefixes: tuple[int, ...]
    held_tokens: int
    shared: tuple[int, ...] = ()

    def rows(self, steps: Iterable[int]) -> Counter[tuple[int, int]]:
        """Return how many of these steps there are of each number of tokens and of shared ticks."""
        return Counter((self.steps[step], self.shared[step] if self.shared else 0) for step in steps)


@dataclass(frozen=True)
class Question:
    """The work of one question, wave after wave. Branches that do not wait for each other are one wave."""

    prompt_tokens: int
    waves: tuple[Wave, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return sum(sum(wave.steps) for wave in self.waves)

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return sum(len(wave.steps) for wave in self.waves)


@dataclass(frozen=True)
class Recorded:
    """What a run's events tell: its config, finished questions in the order they began, and what time was spent on."""

    config: Config
    questions: tuple[Question, ...]
    sessions: tuple[Session, ...] = ()
    occupancies: tuple[Occupancy, ...] = ()
    updates: tuple[UpdateDone, ...] = ()


def joined(runs: Sequence[Recorded]) -> Recorded:
    """Return runs of one config as one, with the work of all."""
    return replace(
        runs[0],
        questions=tuple(question for run in runs for question in run.questions),
        sessions=tuple(session for run in runs for session in run.sessions),
        occupancies=tuple(event for run in runs for event in run.occupancies),
        updates=tuple(update for run in runs for update in run.updates),
    )


@dataclass
class _Growing:
    started: QuestionStarted
    nodes: list[NodeRecord] = field(default_factory=list)
    finished: bool = False


def read_run(folder: Path) -> Recorded:
    """Return what a run's folder holds. Raises RunError for a folder without events."""
    events = read_events(folder)
    first = next(events, None)
    if not isinstance(first, RunStarted):
        raise RunError(f"{folder / FILE_NAME}: the first event is not run_started")
    config = recorded_config(first.config, str(folder / FILE_NAME), imports=False)
    return recorded(config, events)


def recorded(config: Config, events: Iterable[Event]) -> Recorded:
    """Return the work in these events. A question that was begun again has only what came after that."""
    growing: dict[str, _Growing] = {}
    sessions: list[Session] = []
    occupancies: list[Occupancy] = []
    updates: dict[int, UpdateDone] = {}
    for event in events:
        if isinstance(event, QuestionStarted):
            growing.pop(event.question, None)
            growing[event.question] = _Growing(event)
        elif isinstance(event, WaveDone) and event.question in growing:
            growing[event.question].nodes += event.nodes
        elif isinstance(event, QuestionFinished) and event.question in growing:
            growing[event.question].finished = True
        elif isinstance(event, Session):
            sessions.append(event)
        elif isinstance(event, Occupancy):
            occupancies.append(event)
        elif isinstance(event, UpdateDone):
            updates[event.update] = event
    independent = config.search.build_strategy().independent
    questions = [
        question_of(each.started.prompt_tokens, each.nodes, independent=independent)
        for each in growing.values()
        if each.finished
    ]
    return Recorded(config, tuple(questions), tuple(sessions), tuple(occupancies), tuple(updates.values()))


def question_of(prompt_tokens: int, nodes: Sequence[NodeRecord], *, independent: bool) -> Question:
    """Return a question's work from the nodes of its tree; node 0 is the prompt.

    `independent` branches run through without waiting: their wave has the tokens of each whole branch.
    """
    path: dict[int, tuple[int, ...]] = {0: (0,)}
    depth, parents = {0: 0}, {node.parent for node in nodes}
    tokens = {node.id: node.tokens for node in nodes}
    length = {0: prompt_tokens, **{node.id: len(node.tokens) for node in nodes}}
    for node in nodes:
        path[node.id], depth[node.id] = (*path[node.parent], node.id), depth[node.parent] + 1
    if independent:
        leaves = [node for node in nodes if node.id not in parents]
        texts = [tuple(token for own in path[leaf.id][1:] for token in tokens[own]) for leaf in leaves]
        whole = tuple(map(len, texts))
        wave = Wave(whole, (prompt_tokens,) * len(whole), prompt_tokens, shared_ticks([((), text) for text in texts]))
        return Question(prompt_tokens, (wave,) if whole else ())
    waves = []
    for level in range(1, max(depth.values()) + 1):
        own = [node for node in nodes if depth[node.id] == level]
        held = {above for node in own for above in path[node.parent]}
        prefixes = tuple(sum(length[above] for above in path[node.parent]) for node in own)
        shared = shared_ticks(
            [(tuple(token for above in path[node.parent][1:] for token in tokens[above]), node.tokens) for node in own]
        )
        lengths = tuple(length[node.id] for node in own)
        waves.append(Wave(lengths, prefixes, sum(length[above] for above in held), shared))
    return Question(prompt_tokens, tuple(waves))


def shared_ticks(steps: Iterable[tuple[tuple[int, ...], Sequence[int]]]) -> tuple[int, ...]:
    """Return for how many ticks each step has no lane of its own: steps are (text before, own tokens).

    A lane computes the next token of every row with its text. Of rows that part, the first keeps the lane.
    """
    tries: dict[tuple[int, ...], dict[int, Any]] = {}
    found = []
    for before, tokens in steps:
        is_first, same, place = before not in tries, 0, tries.setdefault(before, {})
        is_new = False
        for token in tokens:
            is_new = is_new or token not in place
            same += not is_new
            place = place.setdefault(token, {})
        found.append(0 if is_first else min(len(tokens), same + 1))
    return tuple(found)
