"""Worker processes in which answers are judged, bounded in time with their memory capped.

This is the parent's side, `worker` the other. They exchange one line of JSON per check, never a pickle. A worker is
started by exec, never forked: a fork of a process with torch threads can deadlock.
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
from palmette.tasks.rg_process import fixed_hashes

Verdict = Literal["correct", "wrong", "unparseable", "timed_out"]
Kind = Literal["math", "gym"]

_INSTALL = {"math": "'math-verify[antlr4_13_2]'", "gym": "'palmette[gym]'"}

_START_SECONDS = 60.0
# The worker gets the parent's import path as arguments, so that it finds what the parent finds however that was set up.
_BOOTSTRAP = "import sys; kind, *sys.path[:] = sys.argv[1:]; from palmette.score.worker import main; main(kind)"


class WorkerDiedError(Exception):
    """The worker ended before it answered."""


class WorkerLateError(Exception):
    """The worker did not answer in time and was ended."""


class _Worker:
    """A running worker process. Not thread-safe; `Sandbox` holds the lock."""

    def __init__(self, kind: Kind) -> None:
        """Start the process and wait until it is ready; raise PalmetteError when it cannot start."""
        environment = {**fixed_hashes(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
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
        """Send a request, if there is one, and return the next reply; raise WorkerDiedError or WorkerLateError.

        A timer that ends the worker bounds the write as well as the read, on every platform and from every thread.
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
        """End the process and close its pipes. Safe to call twice."""
        self.process.kill()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this side of both pipes; what was not flushed is dropped."""
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass  # flushing into a dead worker


class Sandbox:
    """Judges answers in a worker that starts with the first check, serves all threads, is replaced when it fails."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    @property
    def worker_pid(self) -> int | None:
        """The process id of the current worker, or None when none runs."""
        worker = self._worker
        return None if worker is None else worker.process.pid

    def check_math(self, answer: str, reference: str, seconds: float) -> Verdict:
        """Return the verdict of math-verify on two LaTeX texts; see `check`."""
        return self.check({"answer": answer, "reference": reference}, seconds)

    def check_gym(self, answer: str, key: dict[str, object], seconds: float) -> Verdict:
        """Return the verdict of a reasoning-gym generator on an answer to the question with this key; see `check`."""
        return self.check({"answer": answer, **key}, seconds)

    def check(self, question: dict[str, Any], seconds: float) -> Verdict:
        """Return the worker's verdict.

        `timed_out` after `seconds`, counted from when this check has the worker to itself and without the second or so
        that starting one takes. A worker that dies (memory limit, crash, killed from outside) is replaced and the check
        tried once more in the time left; when the second dies too, the answer is at fault and counts as `timed_out`.
        """
        request = {**question, "seconds": seconds}
        with self._lock:
            left = seconds
            for _ in range(2):
                worker = self._worker = self._worker or _Worker(self._kind)
                started = time.monotonic()
                try:
                    verdict: Verdict = worker.exchange(request, left)["verdict"]
                    return verdict
                except WorkerDiedError:
                    self._drop()
                    left -= time.monotonic() - started
                    if left <= 0:
                        break
                except WorkerLateError:
                    self._drop()
                    break
                except BaseException:
                    self._drop()  # an interrupt in mid-check leaves a reply behind that the next check would take
                    raise
        return "timed_out"

    def close(self) -> None:
        """End the worker; the next check starts another. Safe to call twice."""
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """After a fork, in the child: let go of the parent's worker without ending it."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.process.returncode = 0  # it is not our child: nothing to wait for, nothing to warn about
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
