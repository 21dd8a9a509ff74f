"""The command in processes of its own, each forked from one that has imported what searches and training import.

Importing that takes longer than most searches of the tests. What is imported, and when, is tested elsewhere, in
processes that start from nothing.
"""

import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.llama.modeling_llama",
        "sentence_transformers",
        "palmette.commands.app",
        "palmette.api",
        "palmette.backends.local",
        "palmette.score.scorers.likelihood",
        "palmette.run.train",
        "palmette.run.training_policy",
        "palmette.report.training.page",
    ]
)


@dataclass(frozen=True)
class _Start:
    """What a process is started with. `program` is `palmette`, or the path of a script."""

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    cwd: Path
    paths: tuple[Path, ...]
    file_bytes: int | None
    output: Path


class Command:
    """A running command. Leaving `with` ends it.

    With `pauses` it waits for ever as soon as the first question's answer is written: it cannot finish before the test
    has done what it wants to do in the middle of a run. `file_bytes` is the most that it may write into one file.
    Packages in `paths` are found before any others.
    """

    def __init__(
        self,
        *arguments: str,
        program: str = "palmette",
        cwd: Path | None = None,
        paths: Sequence[Path] = (),
        pauses: bool = False,
        file_bytes: int | None = None,
    ) -> None:
        self._arguments = (program, *arguments)
        self._folder = tempfile.TemporaryDirectory(prefix="palmette-command-")
        start = _Start(
            program=program,
            arguments=arguments,
            environment=dict(os.environ),
            cwd=cwd or Path.cwd(),
            paths=tuple(paths),
            file_bytes=file_bytes,
            output=Path(self._folder.name),
        )
        self._pauses, theirs = _SERVER.Pipe()
        self._process = _SERVER.Process(target=_run, args=(start, theirs if pauses else None))
        self._process.start()
        theirs.close()

    def __enter__(self) -> "Command":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pauses.close()
        self._folder.cleanup()

    def wait_for_pause(self) -> None:
        """Return where it waits with a question finished; raise AssertionError where it ended before."""
        try:
            self._pauses.recv()
        except EOFError:
            raise AssertionError(self.end().stderr) from None

    def send_signal(self, number: int) -> None:
        """Send a signal to its process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def end(self) -> "subprocess.CompletedProcess[str]":
        """Wait until it has ended; return its exit code and what it wrote."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        out, err = (Path(self._folder.name, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(self._arguments, code, out, err)


def palmette(
    *arguments: str, cwd: Path | None = None, paths: Sequence[Path] = (), file_bytes: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    with Command(*arguments, cwd=cwd, paths=paths, file_bytes=file_bytes) as command:
        return command.end()


def python(
    script: Path, *arguments: str, cwd: Path | None = None, paths: Sequence[Path] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run a script to its end, as `python SCRIPT` does."""
    with Command(*arguments, program=str(script), cwd=cwd, paths=paths) as command:
        return command.end()


def _run(start: _Start, pauses: "Connection[str, str] | None") -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(start.output / name, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Tests that run in the background inherit none.
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.cwd)
    sys.path[:0] = map(str, start.paths)
    sys.argv = [start.program, *start.arguments]
    if start.file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (start.file_bytes, start.file_bytes))
    if pauses is not None:
        _pause_after_an_answer(pauses)
    if start.program != "palmette":
        sys.path.insert(0, str(Path(start.program).parent))
        runpy.run_path(start.program, run_name="__main__")
        return
    from palmette.commands.app import main

    main()


def _pause_after_an_answer(pauses: "Connection[str, str]") -> None:
    from palmette.event_log import EventLog
    from palmette.events import Event, QuestionFinished

    write = EventLog.write

    def write_and_wait(self: EventLog, event: Event) -> None:
        write(self, event)
        if isinstance(event, QuestionFinished):
            pauses.send("one is finished")
            pauses.recv()

    EventLog.write = write_and_wait  # type: ignore[method-assign]
