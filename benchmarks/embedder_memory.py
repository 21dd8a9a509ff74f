"""Peak resident memory of an ETS search with and without the diversity term. `python -m benchmarks.embedder_memory`."""

import resource
import subprocess
import sys
import tempfile

from palmette.units import format_bytes

SEARCH = [sys.executable, "-m", "palmette", "search", "--strategy", "ets", "--questions", "4", "--width", "16"]


def peak(*arguments: str) -> int:
    """Return the most bytes that a search held; called in a process of its own, whose only child it is."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*SEARCH, *arguments, "--out", f"{folder}/run"], check=True, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main() -> None:
    """Print both peaks and their difference."""
    if len(sys.argv) > 1:
        print(peak(*sys.argv[1:]))
        return
    own = [sys.executable, "-m", "benchmarks.embedder_memory", "--set"]
    peaks = {
        weight: int(subprocess.run([*own, f"search.lambda_diversity={weight}"], check=True, capture_output=True).stdout)
        for weight in (0.0, 1.5)
    }
    for weight, held in peaks.items():
        print(f"lambda_diversity {weight}: {format_bytes(held)} resident at the peak")
    print(f"the embedder and its library: {format_bytes(peaks[1.5] - peaks[0.0])}")


if __name__ == "__main__":
    main()
