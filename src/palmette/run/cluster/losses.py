"""What to say of a worker that did not answer in time, and which questions are not asked again."""

from collections.abc import Mapping, Sequence

from palmette.errors import RunError
from palmette.scale.fit import Demand, NodeRoom, most_workers, shortage, what_there_is
from palmette.scale_settings import ScaleSettings
from palmette.units import count_of, format_seconds, one_line


def late_reason(method: str, scale: ScaleSettings, count: int, demand: Demand, nodes: Sequence[NodeRoom]) -> str:
    """Say what one of `count` workers was awaited for, how long, and where it cannot be placed what there is."""
    start = f"{format_seconds(scale.start_seconds)} (scale.start_seconds)"
    if method == "load":
        return f"it did not load its models within {start}"
    if method != "hello":
        return f"it told of no token and no event for {format_seconds(scale.answer_seconds)} (scale.answer_seconds)"
    if most_workers(nodes, demand) < count:
        return f"it found no place within {start}: {shortage(count, demand, nodes)}"
    return f"its process did not start within {start} on {what_there_is(nodes)}"


def refuse_deadly(questions: Sequence[str], losses: Mapping[str, int], restarts: int) -> None:
    """Raise RunError for questions that more workers were lost with than one worker is started again."""
    deadly = [question for question in questions if losses[question] > restarts]
    if deadly:
        named = ", ".join(one_line(question, 40) for question in deadly[:3])
        raise RunError(
            f"{count_of(len(deadly), 'question')}, {named}: {restarts + 1} workers were lost that had them "
            f"(scale.restarts {restarts}). Leave them out, or give workers more memory; finished ones are kept"
        )
