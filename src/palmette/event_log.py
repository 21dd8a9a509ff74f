"""The JSONL file of a run's events: appended by one process at a time, read by any."""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from palmette.errors import RunError
from palmette.events import Event
from palmette.recount import recounted

FILE_NAME = "events.jsonl"
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    cls.kind: TypeAdapter(with_config(ConfigDict(allow_inf_nan=False))(cls)) for cls in get_args(Event)
}
_RENAMED = {"rung": "oom_retry"}
"""Kinds of events by the names that earlier versions wrote."""


@dataclass
class EventLog:
    """Appends events to the file of a run, one JSON object a line, each written completely before the next.

    The file is locked: opening it in a second process raises RunError. An incomplete last line, left by a killed
    process, is removed when the file is opened.
    """

    folder: Path
    _file: int = field(init=False, repr=False)
    _is_whole: bool = field(init=False, repr=False, default=True)
    """Whether the file ends with a complete event. False while one is written, and after that was interrupted."""

    def __post_init__(self) -> None:
        path = self.folder / FILE_NAME
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise RunError(
                f"{self.folder} is being written by another process; wait for it or choose another --out"
            ) from None
        self._remove_incomplete_line()

    def write(self, event: Event) -> None:
        """Append one event. Raises RunError if it cannot be written; the file then ends with a complete event."""
        data = memoryview(encode_event(event).encode("utf-8") + b"\n")
        if not self._is_whole:  # Ctrl-C between two writes: this event would be appended to half a line.
            self._remove_incomplete_line()
        self._is_whole = False
        try:
            while data:
                data = data[os.write(self._file, data) :]
            self._is_whole = True
        except OSError as error:
            self._remove_incomplete_line()
            self._is_whole = True
            raise RunError(
                f"cannot write {self.folder / FILE_NAME}: {error.strerror}. What it holds is kept: "
                f"free disk space and go on with --resume {self.folder}"
            ) from error

    @property
    def is_empty(self) -> bool:
        """Whether no process has written an event yet."""
        return os.fstat(self._file).st_size == 0

    def clear(self) -> None:
        """Remove all events."""
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Flush to disk and release the lock."""
        try:
            os.fsync(self._file)
        except OSError:
            pass  # A pipe or a full disk: what can be written has been written.
        os.close(self._file)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _remove_incomplete_line(self) -> None:
        size = os.fstat(self._file).st_size
        end, block = size, 1 << 16
        while end > 0:
            start = max(0, end - block)
            cut = os.pread(self._file, end - start, start).rfind(b"\n")
            if cut >= 0:
                end = start + cut + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)


def encode_event(event: Event) -> str:
    """Return an event as one line of JSON, without a line break."""
    return json.dumps({"kind": event.kind, **asdict(event)}, separators=(",", ":"), allow_nan=False)


def read_events(folder: Path) -> Iterator[Event]:
    """Yield a run's events in order; an incomplete last line is ignored.

    KV tokens that earlier versions counted in another way are counted again (`recount`).
    Raises RunError if there is no file, and with the number of the line for any other damage.
    """
    path = folder / FILE_NAME
    if path.exists() and not path.is_file():
        raise RunError(f"{folder} is no run folder: {path} is not a regular file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunError(
            f"{folder} is no run folder: cannot read {path}: {error.strerror}. A run that was stopped while its models "
            f"loaded has nothing to resume: start it again"
        ) from error
    with file:
        yield from recounted(_decoded(file, path))


def _decoded(file: BinaryIO, path: Path) -> Iterator[Event]:
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            return
        yield decode_event(line, f"{path}, line {number}")


def decode_event(line: bytes | str, place: str) -> Event:
    """Return the event of one line. Raises RunError, with `place`, for anything else."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{place}: damaged, not JSON ({error})") from None
    kind = values.pop("kind", None) if isinstance(values, dict) else None
    kind = _RENAMED.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in _ADAPTERS:
        raise RunError(f"{place}: damaged, not an event of a known kind")
    try:
        event: Event = _ADAPTERS[kind].validate_python(values)
    except ValidationError as error:
        item = error.errors()[0]
        where = ".".join(str(part) for part in item["loc"])
        raise RunError(f"{place}: damaged {kind} event: {where}: {item['msg']}") from None
    return event
