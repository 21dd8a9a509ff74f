"""Times the report of a run with 5,000 nodes in Chromium: first paint, then every move of the wave slider.

    python -m benchmarks.report OUT_DIR

The run is grown by the search loop itself from a scripted policy and scorer, its events are written as a search writes
them, with clusters added to every second wave. The page is opened at 1280 and at 390 pixels, light and dark; OUT_DIR
gets the page and a screenshot of each.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from playwright.sync_api import Page

from palmette.backends.backend import Backend, Expansion, Step
from palmette.event_log import EventLog
from palmette.events import Event, RunStarted, Session, WaveDone
from palmette.report.compare import compare
from palmette.report.page import write_page
from palmette.score.judges.math import MathJudge
from palmette.score.scorer import Candidate
from palmette.search.growth import Limits
from palmette.search.loop import search
from palmette.search.record import Recorder
from palmette.search.rejudge import Rejudge
from palmette.search.result import finished_event, judge_tree
from palmette.search.strategies.rebase import Rebase
from palmette.settings import Config
from palmette.tasks.task import Question
from tests.browser import COLORS, MISSING, find_chromium, opened, started

WIDTH, DEPTH = 412, 14
QUESTIONS = tuple(
    Question(f"q{number}", ({"role": "user", "content": f"What is {number} + 40, in many steps?"},), str(number + 40))
    for number in range(2)
)
# Each position of the slider in turn, three times. Reading a pixel back waits until all of them are drawn.
SLIDE = """(async () => {
  const slider = document.getElementById("wave"), frame = () => new Promise((done) => requestAnimationFrame(done));
  const pen = document.getElementById("canvas").getContext("2d"), script = [], painted = [];
  for (let move = 0; move < 3 * Number(slider.max) + 3; move += 1) {
    await frame();
    slider.value = move % (Number(slider.max) + 1);
    const begun = performance.now();
    slider.dispatchEvent(new Event("input"));
    script.push(performance.now() - begun);
    pen.getImageData(0, 0, 1, 1);
    painted.push(performance.now() - begun);
  }
  return [script, painted];
})()"""
FIRST_PAINT = """new Promise((told) => new PerformanceObserver((list) => told(list.getEntries()[0].startTime))
  .observe({ type: "paint", buffered: true }))"""


class Dice:
    """A policy that writes sums and a scorer that likes some of them better, both from one seed."""

    calls = 0
    context_tokens: int | None = None
    kv_bytes_per_token = 1024

    def encode(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Return 60 tokens."""
        return (0,) * 60

    def expand(self, expansions: Sequence[Expansion]) -> list[Step]:
        """Throw the dice that belong to each expansion."""
        return [self._step(one) for one in expansions]

    def release(self, question: str, nodes: Sequence[int]) -> None:
        """Forget nothing: nothing is kept."""

    def score(self, candidates: Sequence[Candidate]) -> list[float]:
        """Like most steps, some less."""
        dice = random.Random(len(candidates))
        return [min(0.999, max(0.02, dice.gauss(0.75, 0.2))) for _ in candidates]

    def _step(self, one: Expansion) -> Step:
        dice = random.Random(one.seed)
        number, tokens = dice.randint(1, 99), dice.randint(8, 40)
        is_end = len(one.prefix) > 260 and dice.random() < 0.2
        answer = int(one.question[1:]) + 40 + dice.choice((0, 0, 0, 1, 2, 10))
        text = f"= {answer}" if is_end else f"{number} + {dice.randint(1, 99)} leaves {number + 7} to carry\n"
        return Step((1,) * tokens, text, (-0.1,) * tokens, "end" if is_end else "step", 1.0)


def grow(folder: Path) -> int:
    """Write the events of a run and return how many nodes its first question has."""
    dice, nodes = Dice(), 0
    config = Config.model_validate({"search": {"strategy": "rebase", "width": WIDTH, "depth": DEPTH}})
    with EventLog(folder) as log:
        log.write(RunStarted("0", config.model_dump(mode="json")))

        def write(event: Event) -> None:
            nonlocal nodes
            if isinstance(event, WaveDone):
                nodes += len(event.nodes) if event.question == "q0" else 0
                if event.wave % 2:
                    labels = {leaf: place % 11 for place, leaf in enumerate(event.children)}
                    event = replace(event, clusters=labels)
            log.write(event)

        limits, judge = Limits(WIDTH, DEPTH, 256, 1024, 2), MathJudge(5)
        backend: Backend = dice
        for growth in search(
            QUESTIONS, backend, dice, Rebase(), limits, seed=0, aggregate="prod", observer=Recorder(write)
        ):
            log.write(finished_event(judge_tree(growth, judge, config.search)))
        log.write(Session(1.0, 1, 1, len(QUESTIONS), 1024))
    return nodes


def show(page: Page, path: Path, name: str, out: Path) -> str:
    """Open the report, move through its waves and save what is seen; return what was timed."""
    page.goto(path.resolve().as_uri())
    paint = page.evaluate(FIRST_PAINT)
    script, painted = page.evaluate(SLIDE)
    page.evaluate('document.getElementById("tree-heading").scrollIntoView()')
    for wave in (9, int(page.evaluate('document.getElementById("wave").max'))):
        page.evaluate(f"goToWave({wave})")
        page.screenshot(path=out / f"{name}-wave{wave}.png")
    page.evaluate("KEYS['+'](); KEYS['+'](); KEYS['+'](); KEYS['+'](); KEYS['+'](); KEYS['+'](); KEYS['+']()")
    page.screenshot(path=out / f"{name}-near.png")
    return (
        f"first paint {paint:.0f} ms; slider: script {median(script):.1f} ms median, "
        f"{quantiles(script, n=20)[-1]:.1f} p95; with its pixels {median(painted):.1f} median, "
        f"{quantiles(painted, n=20)[-1]:.1f} p95"
    )


def main(out: Path) -> None:
    """Print a line for each size, save what was shown."""
    binary = find_chromium()
    if binary is None:
        sys.exit(MISSING)
    folder = out / "run"
    folder.mkdir(parents=True)
    nodes = grow(folder)
    path = write_page(compare([folder], lambda config: Rejudge(MathJudge(5), QUESTIONS)), out / "report.html")
    print(f"{nodes} nodes in the tree shown, page of {path.stat().st_size / 1e6:.1f} MB")
    for width, height in ((1280, 900), (390, 844)):
        for colors in COLORS:
            with started(binary) as browser, opened(browser, width, height, colors) as page:
                print(f"{width} px, {colors}: {show(page, path, f'{width}-{colors}', out)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("report-bench"))
