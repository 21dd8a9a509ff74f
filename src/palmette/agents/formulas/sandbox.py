"""The worker process for snippets, seen from the parent: started when first used, replaced if it dies. Thread-safe."""

import atexit
import json
import os
import subprocess
import sys
import threading
from typing import Any, Literal

from palmette.agents.formulas.worker import LENGTH_BYTES, MOST_BYTES
from palmette.errors import PalmetteError
from palmette.tasks.rg_process import fixed_hash_environment

_BOOTSTRAP = (
    "import sys; kind, *sys.path[:] = sys.argv[1:]; from palmette.agents.formulas.worker import main; "
    "main(with_torch=kind == 'torch')"
)
_START_SECONDS = 300.0
_GRACE_SECONDS = 10.0


class SnippetSandbox:
    """Runs snippets one after another in forks of one process, which has numpy loaded, and torch if it is told so."""

    def __init__(self, kind: Literal["plain", "torch"]) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.walls: tuple[str, ...] = ()

    def run(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return `values` or `error` for a request. Raises PalmetteError if no worker can be started."""
        with self._lock:
            process = self._started()
            try:
                return self._ask(process, {**request, "seconds": seconds}, seconds + _GRACE_SECONDS)
            except (OSError, ValueError, EOFError):
                self._drop()
                return {"error": "the worker process died"}
            except BaseException:
                self._drop()
                raise

    def warm(self) -> None:
        """Start the worker, if none runs."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the worker; the next snippet starts another."""
        with self._lock:
            self._drop()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._drop()
            environment = {**fixed_hash_environment(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-c", _BOOTSTRAP, self._kind, *sys.path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, bufsize=0,
            )  # fmt: skip
            try:
                self.walls = tuple(self._hear(self._process, _START_SECONDS)["walls"])
            except (OSError, ValueError, EOFError) as error:
                self._drop()
                raise PalmetteError("code cannot be checked: the worker process did not start") from error
        return self._process

    def _ask(self, process: "subprocess.Popen[bytes]", request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert process.stdin is not None
        text = json.dumps(request).encode()
        data = len(text).to_bytes(LENGTH_BYTES, "big") + text
        while data:
            data = data[os.write(process.stdin.fileno(), data) :]
        return self._hear(process, seconds)

    def _hear(self, process: "subprocess.Popen[bytes]", seconds: float) -> dict[str, Any]:
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            length = int.from_bytes(self._read(process, LENGTH_BYTES), "big")
            if length > MOST_BYTES:
                raise ValueError("a reply that is too long")
            answer = json.loads(self._read(process, length))
        finally:
            timer.cancel()
        if not isinstance(answer, dict):
            raise ValueError("no reply")
        return answer

    def _read(self, process: "subprocess.Popen[bytes]", count: int) -> bytes:
        assert process.stdout is not None
        parts = b""
        while len(parts) < count:
            piece = os.read(process.stdout.fileno(), count - len(parts))
            if not piece:
                raise EOFError
            parts += piece
        return parts

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


plain, torch = SnippetSandbox("plain"), SnippetSandbox("torch")
for _sandbox in (plain, torch):
    atexit.register(_sandbox.close)
