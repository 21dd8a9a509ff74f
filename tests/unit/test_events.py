import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from palmette.errors import RunError
from palmette.event_log import FILE_NAME, EventLog, read_events
from palmette.events import NodeRecord, QuestionStarted, RunStarted, WaveDone

STARTED = RunStarted("0.1", {"seed": 1})
ASKED = QuestionStarted("q1", "what \u2028 is </script> \ud800?", "4", 7, "d")
WAVE = WaveDone("q1", 0, (NodeRecord(1, 0, (5, 6), "a\n", (-0.5, 0.0), False, 0.25),), {1: 2}, 9, 9, kv_as_held=True)


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        for event in (STARTED, ASKED, WAVE):
            log.write(event)
    assert list(read_events(tmp_path)) == [STARTED, ASKED, WAVE]


def test_a_half_written_last_line_is_dropped_by_readers_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(STARTED)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"kind":"question_started","quest')
    assert list(read_events(tmp_path)) == [STARTED]
    with EventLog(tmp_path) as log:
        log.write(ASKED)
    assert list(read_events(tmp_path)) == [STARTED, ASKED]


def test_a_half_line_longer_than_a_block_is_cut_whole(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"x" * 200_000)
    with EventLog(tmp_path) as log:
        log.write(STARTED)
    assert list(read_events(tmp_path)) == [STARTED]


@pytest.mark.parametrize(
    "damage",
    [
        b"{]\n",
        b"[]\n",
        b"\n",
        b'{"kind":"nonsense"}\n',
        b'{"kind":"session","seconds":"x"}\n',
        b"\xff\xfe\n",
        b'{"kind":"session","seconds":NaN,"policy_calls":1,"reward_calls":1,"questions":1,"kv_bytes_per_token":1}\n',
    ],
)
def test_damage_anywhere_else_is_an_error_that_names_the_line(tmp_path: Path, damage: bytes) -> None:
    with EventLog(tmp_path) as log:
        log.write(STARTED)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(damage + b'{"kind":"session"')
    with pytest.raises(RunError, match=r"events.jsonl, line 2: damaged"):
        list(read_events(tmp_path))


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with EventLog(tmp_path), pytest.raises(RunError, match="written by another process"):
        EventLog(tmp_path)
    EventLog(tmp_path).close()


def test_a_full_disk_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to("/dev/full")
    log = EventLog(tmp_path)
    with pytest.raises(RunError, match=f"No space left.*--resume {tmp_path}"):
        log.write(STARTED)
    log.close()


def test_a_line_that_did_not_fit_leaves_no_half_line_behind(tmp_path: Path) -> None:
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
from pathlib import Path
from palmette.errors import RunError
from palmette.event_log import EventLog
from palmette.events import RunStarted
log = EventLog(Path({str(tmp_path)!r}))
log.write(RunStarted("1", {{}}))
try:
    log.write(RunStarted("2", {{"long": "x" * 1000}}))
except RunError:
    log.write(RunStarted("3", {{}}))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(read_events(tmp_path)) == [RunStarted("1", {}), RunStarted("3", {})]


def test_an_interrupted_write_leaves_no_half_line_before_the_next_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    interrupted: list[int] = []

    def short(file: int, data: memoryview) -> int:
        if not interrupted:
            interrupted.append(write(file, data[:20]))
            raise KeyboardInterrupt
        return write(file, data)

    with EventLog(tmp_path) as log:
        log.write(STARTED)
        monkeypatch.setattr(os, "write", short)
        with pytest.raises(KeyboardInterrupt):
            log.write(ASKED)
        assert list(read_events(tmp_path)) == [STARTED]
        log.write(WAVE)
    assert interrupted == [20]
    assert list(read_events(tmp_path)) == [STARTED, WAVE]


def test_a_killed_writer_leaves_a_readable_file(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from palmette.event_log import EventLog
from palmette.events import QuestionStarted
log = EventLog(Path({str(tmp_path)!r}))
number = 0
while True:
    log.write(QuestionStarted(str(number), "x" * 5000, "", 1, ""))
    number += 1
    if number == 200:
        print("going", flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout:
        writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    names = [event.question for event in read_events(tmp_path) if isinstance(event, QuestionStarted)]
    assert len(names) >= 200
    assert names == [str(number) for number in range(len(names))]


def test_a_folder_without_events_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run folder"):
        list(read_events(tmp_path))
