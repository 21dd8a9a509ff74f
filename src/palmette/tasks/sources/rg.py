"""Questions from reasoning-gym generators, judged by the generator's own scorer."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from palmette.errors import BackendError, ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.rg_process import fixed_hashes
from palmette.tasks.task import Format, Question, Task, read_format
from palmette.units import nearest

_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[1:]; from palmette.tasks.rg_process import main; main()"


def load(settings: TaskSettings) -> Task:
    """Return the task `rg:NAME`, judged by the generator's own scorer."""
    form = read_format("gym", settings)
    name = settings.name.partition(":")[2]
    found = tuple(generate(name, form, settings.seed, settings.skip + settings.questions))
    return Task(settings.name, found[settings.skip :], form.step_end, judge="gym")


def generate(name: str, form: Format, seed: int, count: int) -> Iterator[Question]:
    """Yield `count` questions of the generator `name`; the same for the same seed, in every process."""
    dealt = _deal({"generator": name, "seed": seed, "count": count})
    if "missing" in dealt:
        raise BackendError(f"rg: tasks need reasoning-gym ({dealt['missing']}): pip install 'palmette[gym]'")
    if "known" in dealt:
        guess = nearest(name, dealt["known"])
        hint = f"Did you mean 'rg:{guess}'?" if guess else f"There are {len(dealt['known'])}, such as rg:chain_sum."
        raise ConfigError(f"task.name: reasoning-gym has no generator {name!r}. {hint}")
    if "error" in dealt:
        raise BackendError(f"the reasoning-gym generator {name!r} failed: {dealt['error']}")
    for index, (question, answer) in enumerate(dealt["questions"]):
        key: dict[str, object] = {"generator": name, "seed": seed, "size": count, "index": index}
        yield Question(f"{name}-{seed}-{index}", form.messages(question), answer, key)


def _deal(request: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-s", "-c", _BOOTSTRAP, *sys.path],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=fixed_hashes(),
        check=False,
    )
    try:
        dealt: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().rpartition("\n")[2]
        raise BackendError(f"the reasoning-gym generator {request['generator']!r} failed: {last}") from None
    return dealt


plugin = load
