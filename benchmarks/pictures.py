"""The README's pictures, drawn anew: a tree that ETS grew, and the plan of a 7B policy with its reward model.

python -m benchmarks.pictures docs
"""

import shutil
import sys
import tempfile
from pathlib import Path

import palmette

_FRAME = '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#fff"><div id="shot">{}</div>'


def main() -> None:
    """Write tree.png and plan.png into the folder given."""
    folder = Path(sys.argv[1])
    with palmette.Searcher(policy="seedling", strategy="ets", width=16, seed=3) as searcher:
        results = searcher.search(palmette.load_task("ladder", questions=12))
    # One that shows most: kept and pruned branches, right and wrong ends.
    shown = max(results, key=lambda result: len({leaf.outcome for leaf in result.leaves}) * 1000 + len(result.leaves))
    plan = palmette.plan(
        "peiyi9979/mistral-7b-sft", "peiyi9979/math-shepherd-mistral-7b-prm", "ets", width=64, devices="2x24GiB"
    )
    _shoot(shown._repr_html_(), folder / "tree.png", 900)
    _shoot(plan._repr_html_(), folder / "plan.png", 900)


def _shoot(html: str, path: Path, width: int) -> None:
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        page_file = Path(scratch) / "page.html"
        page_file.write_text(_FRAME.format(html), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 400}, device_scale_factor=1.5)
        page.goto(page_file.as_uri())
        page.locator("#shot").screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main()
