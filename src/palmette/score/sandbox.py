"""Checks answers in worker processes with a time limit and a memory limit.

This module runs in the parent process, `worker` in the child. They exchange one line of JSON for each check, no
pickles. A worker is started with exec instead of fork: forking a process with torch threads can deadlock.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Literal

from palmette.errors import PalmetteError
from palmette.tasks.rg_process import fixed_hash_environment

OutcomeName = Literal["correct", "wrong", "unparseable", "timed_out"]
Kind = Literal["math", "gym"]

_INSTALL = {"math": "'math-verify[antlr4_13_2]'", "gym": "'palmette[gym]'"}

_START_SECONDS = 60.0
# The worker gets the parent's sys.path as arguments, so that it can import whatever the parent can.
_BOOTSTRAP = "import sys; kind, *sys.path[:] = sys.argv[1:]; from palmette.score.worker import main; main(kind)"


class WorkerDiedError(Exception):
    """The worker process ended before it replied."""


class WorkerLateError(Exception):
    """The worker process did not reply in time and was killed."""


class _Worker:
    """A running worker process. Not thread-safe: `Sandbox` serializes calls with a lock."""

    def __init__(self, kind: Kind) -> None:
        """Start the process and wait until it is ready. Raises PalmetteError if it cannot start."""
        environment = {**fixed_hash_environment(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-c", _BOOTSTRAP, kind, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        try:
            hello = self.exchange(None, _START_SECONDS)
        except (WorkerDiedError, WorkerLateError) as error:
            self.close()
            raise PalmetteError(
                f"answers cannot be checked: the worker process did not start within {_START_SECONDS:.0f} s "
                f"(exit code {self.process.returncode})"
            ) from error
        if "error" in hello:
            self.close()
            raise PalmetteError(
                f"answers cannot be checked: {hello['error']}. Install it with: pip install {_INSTALL[kind]}"
            )

    def exchange(self, request: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        """Send `request`, unless it is None, and return the next reply.

        Raises WorkerDiedError if the process ends first, WorkerLateError after `seconds`. A timer thread kills the
        worker: this limits the write as well as the read, on every platform and from every thread.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            if request is not None:
                self.process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
            return reply
        raise WorkerLateError if late.is_set() else WorkerDiedError

    def close(self) -> None:
        """Kill the process and close its pipes. Safe to call twice."""
        self.process.kill()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this side of both pipes; data that was not flushed is lost."""
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass  # closing flushes, and the worker is dead


class Sandbox:
    """Checks answers in one worker process, started at the first check and replaced if it fails. Thread-safe."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    @property
    def worker_pid(self) -> int | None:
        """The process id of the current worker, or None if none is running."""
        worker = self._worker
        return None if worker is None else worker.process.pid

    def check_math(self, answer: str, reference: str, seconds: float) -> OutcomeName:
        """Return the outcome of comparing two LaTeX texts with math-verify; see `check`."""
        return self.check({"answer": answer, "reference": reference}, seconds)

    def check_gym(self, answer: str, key: dict[str, object], seconds: float) -> OutcomeName:
        """Return the outcome of a reasoning-gym scorer for an answer to the question with this key; see `check`."""
        return self.check({"answer": answer, **key}, seconds)

    def check(self, question: dict[str, Any], seconds: float) -> OutcomeName:
        """Return the outcome that the worker finds.

        `timed_out` after `seconds`. The time starts when this check holds the lock and the worker is running: waiting
        for other threads and starting a worker (about a second) do not count. If the worker dies (memory limit, crash,
        killed from outside), it is replaced and the check is tried once more in the time left; if the second worker
        dies too, the outcome is `timed_out`. Raises PalmetteError if a worker cannot start.
        """
        request = {**question, "seconds": seconds}
        with self._lock:
            left = seconds
            for _ in range(2):
                worker = self._worker = self._worker or _Worker(self._kind)
                started = time.monotonic()
                try:
                    outcome: OutcomeName = worker.exchange(request, left)["verdict"]
                    return outcome
                except WorkerDiedError:
                    self._drop()
                    left -= time.monotonic() - started
                    if left <= 0:
                        break
                except WorkerLateError:
                    self._drop()
                    break
                except BaseException:
                    self._drop()  # after an interrupt the next check would read the reply to this one
                    raise
        return "timed_out"

    def close(self) -> None:
        """Kill the worker; the next check starts another. Safe to call twice."""
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """Forget the parent's worker without killing it. Called in the child after a fork."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.process.returncode = 0  # not a child of this process: without a return code Popen would warn
            self._worker.close_pipes()
            self._worker = None

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


math, gym = Sandbox("math"), Sandbox("gym")
for _sandbox in (math, gym):
    atexit.register(_sandbox.close)
    os.register_at_fork(after_in_child=_sandbox.forget)
