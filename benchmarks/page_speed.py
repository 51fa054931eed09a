"""How soon the page of a thousand runs is there, and how long a filter takes: in a real browser, on this machine.

    python benchmarks/page_speed.py --runs 1000

First paint is the browser's own mark, from the start of the navigation. A filter is measured from the choice to the
next frame that the browser has drawn; the chart, which is redrawn after the table, is measured beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from budgeted.bench.page import page
from budgeted.bench.page_data import page_data
from tests.bench.browser import chromium, many, written

_FILTER = """async ([id, value]) => {
  const drawn = new Promise(done => document.addEventListener(
    "drawn", event => event.detail === "chart" && done(performance.now())));
  const start = performance.now();
  const select = document.getElementById(id);
  select.value = value;
  select.dispatchEvent(new Event("change"));
  const done = performance.now();
  await new Promise(painted => requestAnimationFrame(() => setTimeout(painted)));
  const frame = performance.now();
  return [done - start, frame - start, await drawn - start];
}"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--runs", type=int, default=1000)
    asked.add_argument("--times", type=int, default=5)
    given = asked.parse_args()
    found = many(given.runs)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        address = written(Path(folder), page(page_data(found, found.runs, [])))
        paints, steps = [], []
        for _ in range(given.times):
            opened = browser.new_page(viewport={"width": 1280, "height": 900})
            opened.goto(address)
            opened.wait_for_selector("#c-chart svg")
            paints.append(opened.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            for choice in (["f-method", "mir"], ["f-dataset", "cifar100"], ["f-method", ""], ["f-dataset", ""]):
                steps.append(opened.evaluate(_FILTER, choice))
            opened.close()
    print(f"{given.runs} runs, {len(found.runs)} shown; milliseconds, median (worst) of {given.times} openings")
    print(f"first paint {statistics.median(paints):.0f} ({max(paints):.0f})")
    for place, name in enumerate(("filter, the table's own work", "filter, until drawn", "filter, with its chart")):
        values = [step[place] for step in steps]
        print(f"{name} {statistics.median(values):.0f} ({max(values):.0f})")


if __name__ == "__main__":
    main()
