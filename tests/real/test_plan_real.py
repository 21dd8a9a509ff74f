"""Plans against the peak resident set of real searches, each in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.plan_vs_measured import MOST_ABOVE, SEARCHES, planned_search


@pytest.mark.parametrize("name", ["seedling, ets 16, no embedder", "seedling with a scalar head, ets 16"])
def test_a_plan_is_never_below_the_measured_peak_nor_far_above_it(name: str) -> None:
    command = [sys.executable, "-m", "benchmarks.plan_vs_measured", "--measure", json.dumps(SEARCHES[name])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    measured = int(done.stdout.split()[-1])
    assert measured <= planned_search(SEARCHES[name]) <= (1 + MOST_ABOVE) * measured
