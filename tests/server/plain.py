"""Real servers as their own commands start them, each until a `with` block is left."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palmette.launch.ask import free_port

ROOT = Path(__file__).parents[2]
_COMMANDS = {
    "vllm": ("-m", "vllm.entrypoints.cli.main", "serve", "{model}", "--dtype", "float32", "--enforce-eager",
             "--enable-prefix-caching", "--block-size", "32"),
    "sglang": ("-m", "sglang.launch_server", "--model-path", "{model}", "--device", "cpu", "--dtype", "float32",
               "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule",
               "--mem-fraction-static", "0.1", "--max-total-tokens", "4096"),
}  # fmt: skip
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
}


def python_of(engine: str) -> str:
    """Return the Python that has an engine: PALMETTE_VLLM_PYTHON, PALMETTE_SGLANG_PYTHON or that of `make servers`."""
    found = os.environ.get(f"PALMETTE_{engine.upper()}_PYTHON") or str(ROOT / f".venv-{engine}" / "bin" / "python")
    if not Path(found).exists():
        pytest.fail(f"{engine} is not installed: there is no {found}", pytrace=False)
    return found


@contextmanager
def server(engine: str, model: str, log: Path, *flags: str) -> Iterator[str]:
    """Start a server of a model and wait until it is well; yield its address."""
    port = free_port()
    words = [word.format(model=model) for word in _COMMANDS[engine]]
    command = [python_of(engine), *words, "--host", "127.0.0.1", "--port", str(port), *flags]
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": ""}  # That of these tests is not the servers'.
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
    try:
        while not _is_well(port):
            assert process.poll() is None, log.read_text(encoding="utf-8")[-4000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


def _is_well(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the server with all that it has started: its session is its own."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
