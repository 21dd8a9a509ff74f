"""The task `rg:NAME`: questions of a reasoning-gym generator, judged by the generator's own scorer."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from palmette.errors import BackendError, ConfigError
from palmette.settings import TaskSettings
from palmette.tasks.rg_process import fixed_hash_environment
from palmette.tasks.task import Format, Question, Task, read_format
from palmette.units import nearest

_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[1:]; from palmette.tasks.rg_process import main; main()"


def load(settings: TaskSettings) -> Task:
    """Return the task `rg:NAME`. Raises ConfigError for an unknown generator, BackendError if generating fails."""
    form = read_format("gym", settings)
    name = settings.name.partition(":")[2]
    found = tuple(generate(name, form, settings.seed, settings.skip + settings.questions, settings.generator))
    return Task(settings.name, found[settings.skip :], form.step_end, judge="gym")


def generate(
    name: str, form: Format, seed: int, count: int, options: Mapping[str, Any] | None = None
) -> Iterator[Question]:
    """Yield `count` questions of the generator `name`, the same for the same seed and options in every process."""
    generated = _generate({"generator": name, "seed": seed, "count": count, "options": dict(options or {})})
    if "missing" in generated:
        raise BackendError(f"rg: tasks need reasoning-gym ({generated['missing']}): pip install 'palmette[gym]'")
    if "known" in generated:
        guess = nearest(name, generated["known"])
        hint = f"Did you mean 'rg:{guess}'?" if guess else f"There are {len(generated['known'])}, such as rg:chain_sum."
        raise ConfigError(f"task.name: reasoning-gym has no generator {name!r}. {hint}")
    if "error" in generated:
        raise BackendError(f"the reasoning-gym generator {name!r} failed: {generated['error']}")
    for index, (question, answer) in enumerate(generated["questions"]):
        key: dict[str, object] = {"generator": name, "seed": seed, "size": count, "index": index}
        if options:
            key["options"] = dict(options)
        yield Question(f"{name}-{seed}-{index}", form.messages(question), answer, key, text=question)


def _generate(request: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-s", "-c", _BOOTSTRAP, *sys.path],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=fixed_hash_environment(),
        check=False,
    )
    try:
        generated: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().rpartition("\n")[2]
        raise BackendError(f"the reasoning-gym generator {request['generator']!r} failed: {last}") from None
    return generated


plugin = load
