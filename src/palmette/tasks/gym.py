"""Questions from reasoning-gym generators, judged by the generator's own scorer."""

from collections.abc import Iterator

from palmette.config import nearest
from palmette.errors import BackendError, ConfigError
from palmette.tasks.task import Format, Question


def generate(name: str, form: Format, seed: int, count: int) -> Iterator[Question]:
    """Yield `count` questions of the generator `name`; the same for the same seed."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise BackendError("rg: tasks need reasoning-gym: pip install 'palmette[gym]'") from error
    if name not in DATASETS:
        guess = nearest(name, DATASETS)
        hint = f"Did you mean 'rg:{guess}'?" if guess else f"There are {len(DATASETS)}, for example rg:chain_sum."
        raise ConfigError(f"task.name: reasoning-gym has no generator {name!r}. {hint}")
    try:
        dataset = reasoning_gym.create_dataset(name, size=count, seed=seed)
        for index in range(count):
            entry = dataset[index]
            key: dict[str, object] = {"generator": name, "seed": seed, "size": count, "index": index}
            yield Question(f"{name}-{seed}-{index}", form.messages(str(entry["question"])), str(entry["answer"]), key)
    except (ImportError, OSError, ValueError, AssertionError, LookupError) as error:
        raise BackendError(f"the reasoning-gym generator {name!r} failed: {error}") from error
