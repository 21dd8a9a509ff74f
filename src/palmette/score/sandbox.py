"""Checks answers in worker processes behind walls of the operating system, with a time limit and a memory limit.

This module runs in the parent process, `worker` in the child. They exchange lengths, JSON and single bytes, no pickles.
A worker is started with exec instead of fork: forking a process with torch threads can deadlock.
"""

import atexit
import json
import os
import secrets
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

from palmette.errors import PalmetteError
from palmette.score.worker import LENGTH_BYTES, NONCE_BYTES, OUTCOMES
from palmette.tasks.rg_process import fixed_hash_environment

OutcomeName = Literal["correct", "wrong", "unparseable", "timed_out"]

_START_SECONDS = 60.0
_GRACE_SECONDS = 10.0
"""How long the worker may take to stop a check whose time is over, before the worker itself is stopped."""
# The worker gets the parent's sys.path as arguments, so that it can import whatever the parent can.
_BOOTSTRAP = "import sys; module, *sys.path[:] = sys.argv[1:]; from palmette.score.worker import main; main(module)"


class WorkerDiedError(Exception):
    """The worker process ended before it replied, or wrote what nobody had asked for."""


class WorkerLateError(Exception):
    """The worker process did not reply in time and was killed."""


class _Worker:
    """A running worker process. Not thread-safe: `Sandbox` serializes calls with a lock."""

    def __init__(self, module: str, install: str) -> None:
        """Start the process and wait until it is ready. Raises PalmetteError if it cannot start."""
        environment = {**fixed_hash_environment(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-c", _BOOTSTRAP, module, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )
        try:
            with self._killed_after(_START_SECONDS):
                hello = json.loads(self._read(int.from_bytes(self._read(LENGTH_BYTES), "big")))
        except (WorkerDiedError, WorkerLateError) as error:
            self.close()
            raise PalmetteError(
                f"answers cannot be checked: the worker process did not start within {_START_SECONDS:.0f} s "
                f"(exit code {self.process.returncode})"
            ) from error
        if "error" in hello:
            self.close()
            raise PalmetteError(f"answers cannot be checked: {hello['error']}. Install it with: pip install {install}")
        self.walls: tuple[str, ...] = tuple(hello["walls"])

    def ask(self, request: dict[str, Any], seconds: float) -> OutcomeName:
        """Send a request and return the outcome that the worker replies.

        Raises WorkerDiedError if the process ends first or writes anything but this one reply, WorkerLateError after
        `seconds` and the time to stop the check.
        """
        text, nonce = json.dumps(request).encode("ascii"), secrets.token_bytes(NONCE_BYTES)
        with self._killed_after(seconds + _GRACE_SECONDS):
            self._expect_silence()
            self._write(len(text).to_bytes(LENGTH_BYTES, "big") + text + nonce)
            reply = self._read(NONCE_BYTES + 1)
            self._expect_silence()
        if reply[:NONCE_BYTES] != nonce or reply[NONCE_BYTES:] not in OUTCOMES:
            raise WorkerDiedError
        outcome = OUTCOMES[reply[NONCE_BYTES:]]
        if outcome.startswith("points ") and not request.get("points"):
            return "unparseable"  # Only an answer that has taken over its check can say that.
        return cast("OutcomeName", outcome)

    @contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        """Kill the worker after `seconds`: this ends writes and reads, on every platform and from every thread."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, WorkerDiedError) as error:
            raise (WorkerLateError if late.is_set() else WorkerDiedError) from error
        finally:
            timer.cancel()

    def _expect_silence(self) -> None:
        """Raise WorkerDiedError if the worker has written a byte, or has ended."""
        assert self.process.stdout is not None
        heard = select.poll()  # not select(), which takes no descriptor above 1023
        heard.register(self.process.stdout, select.POLLIN)
        if heard.poll(0):
            raise WorkerDiedError

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.process.stdin.fileno(), rest) :]

    def _read(self, count: int) -> bytes:
        """Return exactly so many bytes. Raises WorkerDiedError if the pipe ends before."""
        assert self.process.stdout is not None
        parts = b""
        while len(parts) < count:
            piece = os.read(self.process.stdout.fileno(), count - len(parts))
            if not piece:
                raise WorkerDiedError
            parts += piece
        return parts

    def close(self) -> None:
        """Kill the process and close its pipes. Safe to call twice."""
        self.process.kill()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this side of both pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Sandbox:
    """Checks answers in one worker process, started at the first check and replaced if it fails. Thread-safe.

    `module` has the checks (see `worker.main`); `install` names the package to install if its library is missing.
    """

    def __init__(self, module: str, install: str) -> None:
        self._module = module
        self._install = install
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    @property
    def worker_pid(self) -> int | None:
        """The process id of the current worker, or None if none is running."""
        worker = self._worker
        return None if worker is None else worker.process.pid

    @property
    def walls(self) -> tuple[str, ...]:
        """The names of the operating system's walls around the current worker; starts one if none is running."""
        with self._lock:
            return self._started().walls

    def check_math(self, answer: str, reference: str, seconds: float) -> OutcomeName:
        """Return the outcome of comparing two LaTeX texts with math-verify; see `check`."""
        return self.check({"answer": answer, "reference": reference}, seconds)

    def check_gym(self, answer: str, key: dict[str, object], seconds: float) -> OutcomeName:
        """Return the outcome of a reasoning-gym scorer for an answer to the question with this key; see `check`."""
        return self.check({"answer": answer, **key}, seconds)

    def gym_points(self, answer: str, key: dict[str, object], seconds: float) -> float:
        """Return the points of a reasoning-gym scorer for an answer, from 0 to 1 in hundredths; 0 if it has none."""
        told = str(self.check({"answer": answer, **key, "points": True}, seconds))
        return int(told.removeprefix("points ")) / 100 if told.startswith("points ") else 0.0

    def check(self, question: dict[str, Any], seconds: float) -> OutcomeName:
        """Return the outcome that the worker finds.

        `timed_out` after `seconds`, or if the check ran out of memory or crashed. The time starts when this check holds
        the lock and the worker is running: waiting for other threads and starting a worker (about a second) do not
        count. If the worker dies (killed from outside), or its pipe carries anything but the one reply to this check,
        it is replaced and the check is tried once more; after a second time the outcome is `timed_out`. Raises
        PalmetteError if a worker cannot start.
        """
        with self._lock:
            left = seconds
            for _ in range(2):
                worker = self._started()
                started = time.monotonic()
                try:
                    return worker.ask({**question, "seconds": left}, left)
                except WorkerDiedError:
                    self._drop()
                    left -= time.monotonic() - started
                    if left <= 0:
                        break
                except WorkerLateError:
                    self._drop()
                    break
                except BaseException:
                    self._drop()  # after an interrupt the reply to this check is still to come
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

    def _started(self) -> _Worker:
        self._worker = self._worker or _Worker(self._module, self._install)
        return self._worker

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


math = Sandbox("palmette.score.checks.math", "'math-verify[antlr4_13_2]'")
gym = Sandbox("palmette.score.checks.gym", "'palmette[gym]'")
for _sandbox in (math, gym):
    atexit.register(_sandbox.close)
    os.register_at_fork(after_in_child=_sandbox.forget)
