"""The code in numbers: files and lines of each room, importers of the config, public names that stand twice.

python -m benchmarks.rooms            # this source tree
python -m benchmarks.rooms OTHER_SRC  # that of another commit
"""

import ast
import statistics
import sys
from collections import Counter
from pathlib import Path

_COMMANDS = {"cli", "console"}


def main() -> None:
    """Print one Markdown table and three lines."""
    package = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src") / "palmette"
    trees = {path.relative_to(package): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    lines = {path: len((package / path).read_text("utf-8").splitlines()) for path in trees}
    rooms: dict[str, list[int]] = {}
    for path, count in lines.items():
        room = "/".join(path.parts[:-1]) or ("(commands)" if path.stem in _COMMANDS else "(top)")
        if path.name != "__init__.py":
            rooms.setdefault(room, []).append(count)
    print("| room | files | lines | median | largest |\n|---|---:|---:|---:|---:|")
    for room, counts in sorted(rooms.items()):
        print(f"| {room} | {len(counts)} | {sum(counts)} | {statistics.median(counts):.0f} | {max(counts)} |")
    every = [count for counts in rooms.values() for count in counts]
    print(f"| all | {len(every)} | {sum(every)} | {statistics.median(every):.0f} | {max(every)} |")
    print(
        f"\nfiles under 50 lines: {sum(count < 50 for count in every)}; over 300: {sum(count > 300 for count in every)}"
    )
    importers = [path for path, tree in trees.items() if "palmette.config" in imported(tree)]
    most = max(trees, key=lambda path: len([name for name in imported(trees[path]) if name.startswith("palmette")]))
    count = len([name for name in imported(trees[most]) if name.startswith("palmette")])
    print(f"importers of config: {len(importers)}; most imports of our own modules: {most} ({count})")
    names = Counter(name for path, tree in trees.items() for name in public_names(tree))
    twice = {name: count for name, count in names.items() if count > 1 and name not in ("load", "plugin", "main")}
    print(f"public names that stand in two files or more: {len(twice)} ({', '.join(sorted(twice))})")


def imported(tree: ast.Module) -> set[str]:
    """Return the modules that a file imports anywhere, for types alone left out."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def public_names(tree: ast.Module) -> list[str]:
    """Return the functions and classes that a file defines for others."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


if __name__ == "__main__":
    main()
