"""The explorer in headless Chromium: from a slider to new curves, and to the optimum.

    python benchmarks/explorer.py        prints the tables, writes benchmarks/results/explorer.*

Times are measured in the page: from the key that moves a slider to the frame in which the new loss
is on the screen, and from a click on Solve to the certificate. Beside them the library alone, in
this process, computes the same. Needs what `make test-explorer` installs; takes some minutes.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import replan
from common import save
from replan.explorer import State
from replan.explorer._results import curves

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "explorer"))

from serving import LONG, opened, served

REPEATS = 60
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SLIDERS = {
    "learning rate": ("training.lr", "the same start"),
    "similarity": ("model.similarity", "a new start: 1,000 units of pretraining"),
    "hidden units": ("model.hidden", "a new start, 2 to 6 hidden units"),
}

# Deep in the shadow roots of Panel; `act` is done at once, `text` tells when its effect is there.
MEASURE = """
async ([what, selector, key, place]) => {
  const find = (root, path) => {
    for (const element of root.querySelectorAll('*')) {
      if (element.matches(path)) return element;
      const inside = element.shadowRoot && find(element.shadowRoot, path);
      if (inside) return inside;
    }
    return null;
  };
  const within = (outer, inner) => {
    const host = find(document, outer);
    return host && host.shadowRoot ? find(host.shadowRoot, inner) : null;
  };
  const shown = () => within(place[0], place[1])?.textContent;
  const target = within(selector[0], selector[1]);
  const before = shown();
  const begin = performance.now();
  let begun = false;  // a search, which may find the same as before
  if (what == 'key') {
    target.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
  } else target.click();
  while (true) {
    await new Promise(requestAnimationFrame);
    const now = shown();
    if (what == 'click' && !begun) begun = now.includes('solving');
    else if (what == 'click' ? !now.includes('solving') : now && now != before)
      return performance.now() - begin;
    if (performance.now() - begin > 60000) return NaN;
  }
}
"""


def row(name: str, milliseconds: list[float], about: str, target: float | None) -> dict:
    return {
        "what": name,
        "median ms": float(np.median(milliseconds)),
        "95 % ms": float(np.quantile(milliseconds, 0.95)),
        "target ms": target or "",
        "repeats": len(milliseconds),
        "load": os.getloadavg()[0],  # of this machine: processes that want a core
        "about": about,
    }


def sliders(page) -> list[dict]:
    rows = []
    for name, (key, about) in SLIDERS.items():
        dial = f".dial-{key.replace('.', '-')}"
        page.locator(f"{dial} .noUi-handle").focus()
        times = []
        for i in range(REPEATS):
            way = "ArrowRight" if i // 4 % 2 == 0 else "ArrowLeft"
            asked = ["key", [dial, ".noUi-handle"], way, [".card-interleaved", ".loss"]]
            times.append(page.evaluate(MEASURE, asked))
        rows.append(row(f"slider: {name}", times, about, 200.0))
    return rows


def optimum(page) -> list[dict]:
    times = []
    for _ in range(REPEATS // 3):
        asked = ["click", [".solve", "button"], "", [".status", "p"]]
        times.append(page.evaluate(MEASURE, asked))
    return [row("optimum", times, "from the click to its certificate", 1000.0)]


def library() -> list[dict]:
    """Time the same work without a page: curves of three strategies and one's own, and the plan."""
    state = State.of_kind()
    values = [1.0 + 0.05 * (i % 20) for i in range(REPEATS)]
    turned = {
        "learning rate": [state.turn("training.lr", x) for x in values],
        "similarity": [state.turn("model.similarity", 0.3 + x / 1e4) for x in range(REPEATS)],
    }
    rows = [
        row(
            f"library: {name}",
            [1e3 * timed(lambda s=s: curves(s)) for s in states],
            "4 curves",
            None,
        )
        for name, states in turned.items()
    ]
    times = [1e3 * timed(lambda: replan.solve(state.problem)) for _ in range(REPEATS // 3)]
    return [*rows, row("library: optimum", times, "solve", None)]


def timed(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    curves(State.of_kind())
    replan.solve(State.of_kind().problem)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
        try:
            context = browser.new_context(viewport={"width": 1400, "height": 1000})
            context.set_default_timeout(LONG)
            page = opened(context, server.url)
            found = sliders(page)
            page.reload()
            page.wait_for_selector(".status .done")
            found += optimum(page)
        finally:
            browser.close()
    save("explorer", {"250 steps, K = T = 2": found + library()})


if __name__ == "__main__":
    main()
