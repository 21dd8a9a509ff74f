"""The control groups of this process: the folders in which the kernel keeps their limits."""

from pathlib import Path


def own_groups(folder: str, controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folder of this process's cgroup and those of all groups above it, the outermost first.

    `folder` is where the hierarchy is mounted, `controller` is empty for version 2. /proc/self/cgroup has a line
    `ID:CONTROLLERS:PATH` for each hierarchy; version 2 has no controllers. In a container the path may be the host's:
    what is not mounted here has no files, and the outermost folder is the container's own.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    path = next((path for _, controllers, path in rows if controller in controllers.split(",")), "/")
    groups = [root / folder]
    for part in path.strip("/").split("/"):
        if part in ("", ".."):  # The group is outside of what this namespace shows.
            break
        groups.append(groups[-1] / part)
    return groups
