"""Finds profiles: shipped ones by their name or by the model they are for, others in files of the user's own."""

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from pydantic import ValidationError

from palmette.errors import ConfigError
from palmette.profiles.profile import Profile
from palmette.units import nearest, one_line
from palmette.yaml_file import read_yaml

_ENDING = ".yaml"


@cache
def shipped_profiles() -> dict[str, Profile]:
    """Return the profiles that come with palmette, by name."""
    with as_file(files("palmette.profiles")) as folder:
        return {path.name.removesuffix(_ENDING): _read(path) for path in sorted(folder.glob(f"*{_ENDING}"))}


def profile_for(model: str) -> str | None:
    """Return the name of the shipped profile for a model, by the last part of its hub id or folder; None for none.

    A folder of the hub's cache, `models--ORGANIZATION--NAME/snapshots/...`, counts by the name in it.
    """
    parts = Path(model).parts
    name = parts[-3].rpartition("--")[2] if len(parts) > 2 and parts[-2] == "snapshots" else "".join(parts[-1:])
    for profile, content in shipped_profiles().items():
        if name.lower() in (known.lower() for known in content.models):
            return profile
    return None


def read_profile(name: str) -> Profile:
    """Return a shipped profile by its name, or the one in a YAML file. Raises ConfigError where there is neither."""
    shipped = shipped_profiles()
    if name in shipped:
        return shipped[name]
    path = Path(name).expanduser()
    if path.is_file():
        return _read(path)
    guess = nearest(name, shipped)
    hint = f"Did you mean {guess!r}?" if guess else f"There are {', '.join(shipped)}."
    raise ConfigError(f"reward.profile: there is no profile and no file {one_line(name, 120)!r}. {hint}")


def _read(path: Path) -> Profile:
    values = read_yaml(path)
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, item['loc'])) or 'profile'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise ConfigError(f"{path} is no profile: {one_line('; '.join(faults), 400)}") from error
