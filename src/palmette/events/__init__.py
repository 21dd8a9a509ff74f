"""The events of a run as typed records; their fields are the JSON keys of the file."""

from palmette.events.memory import MemoryTimeline, OomRetry, PhasePeak, Reclaimed
from palmette.events.search import (
    Chosen,
    JudgedLeaf,
    NodeRecord,
    QuestionFinished,
    QuestionStarted,
    RunStarted,
    ServerUse,
    Session,
    WaveDone,
)
from palmette.events.training import (
    CheckpointWritten,
    Evaluated,
    Noticed,
    RowsTested,
    ShownSample,
    ShownStep,
    ShownTree,
    UpdateDone,
)
from palmette.events.values import Amount, Count, Signed
from palmette.events.workers import Occupancy, QuestionTimed, TicksOfSize, WorkerEnded

Event = (
    RunStarted
    | QuestionStarted
    | WaveDone
    | QuestionFinished
    | Session
    | Occupancy
    | OomRetry
    | Reclaimed
    | MemoryTimeline
    | QuestionTimed
    | WorkerEnded
    | UpdateDone
    | Evaluated
    | RowsTested
    | Noticed
    | CheckpointWritten
)

__all__ = [
    "Amount",
    "CheckpointWritten",
    "Chosen",
    "Count",
    "Evaluated",
    "Event",
    "JudgedLeaf",
    "MemoryTimeline",
    "NodeRecord",
    "Noticed",
    "Occupancy",
    "OomRetry",
    "PhasePeak",
    "QuestionFinished",
    "QuestionStarted",
    "QuestionTimed",
    "Reclaimed",
    "RowsTested",
    "RunStarted",
    "ServerUse",
    "Session",
    "ShownSample",
    "ShownStep",
    "ShownTree",
    "Signed",
    "TicksOfSize",
    "UpdateDone",
    "WaveDone",
    "WorkerEnded",
]
