"""Drives a Chromium that is installed on the machine, over its debugging pipe. Needs no driver and no package."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """Return the browser's path, None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends do not stand where the browser's have to."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


class Page:
    """One tab of a browser of its own. A call waits for its answer; a page's own errors are raised."""

    def __init__(self, binary: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="palmette-chromium-", ignore_cleanup_errors=True)
        to_browser, self._out = _pipe()
        self._in, from_browser = _pipe()
        self._process = subprocess.Popen(
            # The pipe's ends have to be numbers 3 and 4 in the browser. A shell moves them there; dash cannot, above 9.
            ["bash", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', binary, *FLAGS,
             f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._calls, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach(width, height, dark)
        except BaseException:
            self.close()
            raise

    def _attach(self, width: int, height: int, dark: bool) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.theme("dark" if dark else "light")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call the browser and return what it answers."""
        self._calls += 1
        number = self._calls
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda told: told.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda told: told.get("method") == "Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"].get("description", "thrown"))
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Home": 36, "End": 35}
        code |= {"PageUp": 33, "PageDown": 34}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code.get(key, 0), **text)

    def resize(self, width: int, height: int) -> None:
        """Give the page a window of this size, narrower than a real one can be."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def theme(self, name: str) -> None:
        """Ask the page for its light or its dark colors."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save what is shown, or the whole page, as PNG."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            pass  # It has ended already, or is ended now.
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            os.close(self._in)
            self._folder.cleanup()

    def __enter__(self) -> "Page":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _until(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            while b"\0" not in self._rest:
                read = os.read(self._in, 1 << 20)
                if not read:
                    raise RuntimeError("the browser has ended")
                self._rest += read
            line, self._rest = self._rest.split(b"\0", 1)
            told: dict[str, Any] = json.loads(line)
            if told.get("method") == "Runtime.exceptionThrown":
                self.errors.append(told["params"]["exceptionDetails"].get("exception", {}).get("description", "thrown"))
            elif told.get("method") == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            if is_wanted(told):
                return told
