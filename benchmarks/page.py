"""The page in the browser: its bytes, how soon it shows something, and how it keeps up with a hand.

    python benchmarks/page.py     prints the tables, writes benchmarks/results/page.*

Needs the page (`make page`), playwright (extra `bench`) and a Chromium on PATH. The page is opened
from its file by a new process with an empty profile each time. Times end after the frame: script,
style, layout and painting are done, and the compositor has what it shows. Mice are real ones as
far as the page can tell: their events come from outside, one after the other.
"""

import gzip
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

import replan
from common import HERE, save

FILE = HERE.parent / "build" / "replan.html"
ADDRESSES = ("", "#t=4&k=4")
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
VIEW = {"width": 1280, "height": 1600}  # tall enough for the picture and the slider below it
REPEATS = 7
MOVES = 80

WATCH = """
  let changed = false; // the picture, since the last frame that was waited for
  new MutationObserver((mutations) => {
    const picture = document.getElementById("picture");
    changed ||= mutations.some(({ target }) => picture?.contains(target));
  }).observe(document, { attributes: true, characterData: true, childList: true, subtree: true });

  const afterFrame = (isReady, then) =>
    requestAnimationFrame(() =>
      setTimeout(() => (changed && isReady() ? then() : afterFrame(isReady, then))),
    );

  const opened = new Promise((done) => {
    const isReady = () => window.page?.losses;
    afterFrame(isReady, () => done([performance.timeOrigin, performance.now()]));
  });

  /* Press the button as soon as the page has opened; when does the best show, how good is it? */
  const best = async () => {
    await opened;
    const button = document.getElementById("best");
    changed = false;
    button.click();
    await new Promise((done) => {
      afterFrame(() => window.page.best && !window.page.searching, done);
    });
    const { best, state } = window.page;
    const losses = best.losses.slice(-state.tasks);
    return [performance.now(), losses.reduce((sum, loss) => sum + loss) / state.tasks];
  };

  const frames = []; // milliseconds from every move of a pressed mouse to its frame
  let heard = () => {};
  const listen = (event) => {
    if (!event.buttons) return;
    changed = false;
    afterFrame(() => true, () => heard(frames.push(performance.now() - event.timeStamp)));
  };
  addEventListener("pointermove", listen, true);
  const framed = (count) =>
    new Promise((done) => {
      heard = () => frames.length >= count && done(frames);
      heard();
    });
  window.watch = { opened, best, framed };
"""


def launch(playwright: Playwright) -> Browser:
    """Start a browser with an empty profile."""
    found = next(filter(None, map(shutil.which, CHROMIUMS)))
    return playwright.chromium.launch(executable_path=found, args=FLAGS)


def watched(browser: Browser, address: str) -> Page:
    page = browser.new_page(viewport=VIEW, bypass_csp=True)  # its policy forbids `evaluate`
    page.add_init_script(WATCH)
    page.goto(FILE.as_uri() + address)
    return page


def opened(playwright: Playwright, address: str) -> dict[str, float]:
    """Seconds of the start of a process and from there to the curves, in a browser of its own."""
    begin = time.time()
    browser = launch(playwright)
    origin, curves = watched(browser, address).evaluate("watch.opened")
    browser.close()
    return {"process": origin / 1000 - begin, "curves": curves / 1000}


def best(playwright: Playwright, address: str) -> dict[str, float]:
    """Seconds from opening to the best, asked for at once, and its loss; another new browser."""
    browser = launch(playwright)
    page = watched(browser, address)
    curves = page.evaluate("watch.opened")[1]
    shown, loss = page.evaluate("watch.best()")
    browser.close()
    return {"seconds": shown / 1000, "search": (shown - curves) / 1000, "loss": loss}


def problem_file(playwright: Playwright, address: str, folder: Path) -> Path:
    """Download problem.toml from the page."""
    browser = launch(playwright)
    page = watched(browser, address)
    page.evaluate("watch.opened")
    with page.expect_download() as download:
        page.evaluate("document.querySelector('[data-file=\"problem.toml\"]').click()")
    path = folder / "problem.toml"
    download.value.save_as(path)
    browser.close()
    return path


def hand(playwright: Playwright, address: str) -> list[dict]:
    """Milliseconds from a move of the mouse to its frame, on the slider and on the bar."""
    browser = launch(playwright)
    rows = []
    for what, name in (("similarity slider", "similarity"), ("brush", "paint-shares")):
        page = watched(browser, address)
        page.evaluate("watch.opened")
        page.locator(f"#{name}").scroll_into_view_if_needed()
        frames = drag(page, page.locator(f"#{name}").bounding_box())
        assert page.locator("#picture").bounding_box()["y"] >= 0, "the picture is out of sight"
        low, high = np.percentile(frames, [50, 95])
        row = {"moves": what, "median ms": low, "95 % ms": high, "longest ms": max(frames)}
        rows.append(row)
        page.close()
    browser.close()
    return rows


def drag(page: Page, box: dict[str, float]) -> list[float]:
    """Drag there and back along a wave; return the milliseconds to each frame."""
    there = np.linspace(0.1, 0.9, MOVES // 2)
    x = box["x"] + box["width"] * np.concatenate([there, there[::-1] - 0.01])
    y = box["y"] + box["height"] * (0.5 + 0.4 * np.sin(np.arange(len(x)) / 5))
    page.mouse.move(x[0], y[0])
    page.mouse.down()
    for count in range(1, len(x)):
        page.mouse.move(x[count], y[count])
        page.evaluate(f"watch.framed({count})")
    page.mouse.up()
    return page.evaluate(f"watch.framed({count})")


def command_line(problem: Path) -> float:
    begin = time.perf_counter()
    command = [str(Path(sys.executable).parent / "replan"), "solve", problem.name]
    subprocess.run(command, cwd=problem.parent, check=True, capture_output=True)
    return time.perf_counter() - begin


def warm(problem: Path) -> tuple[float, float]:
    """Seconds of reading and solving in this process, and the relaxed value, as on the page."""
    begin = time.perf_counter()
    plan = replan.solve(replan.Problem.load(problem))
    return time.perf_counter() - begin, plan.certificate.relaxed_value


def against_solve(playwright: Playwright, address: str) -> list[dict]:
    """Open to the best, and `solve`, which also rounds and certifies what it finds."""
    with tempfile.TemporaryDirectory() as folder:
        file = problem_file(playwright, address, Path(folder))
        warm(file)
        ours, commands, calls = [], [], []
        for _ in range(REPEATS):  # alternately
            ours.append(best(playwright, address))
            commands.append(command_line(file))
            calls.append(warm(file))
    page = median(row["seconds"] for row in ours)
    losses = (median(row["loss"] for row in ours), calls[0][1])
    times = {
        "open to best": (page, losses[0]),
        "of that, from the button": (median(row["search"] for row in ours), losses[0]),
        "replan solve problem.toml": (median(commands), losses[1]),
        "replan.solve, warm": (median(seconds for seconds, _ in calls), losses[1]),
    }
    return [
        {"way": way, "s": seconds, "times the page": seconds / page, "loss": f"{loss:.8f}"}
        for way, (seconds, loss) in times.items()
    ]


def openings(playwright: Playwright, address: str) -> dict:
    runs = [opened(playwright, address) for _ in range(REPEATS)]
    process, curves = (median(run[name] for run in runs) for name in ("process", "curves"))
    return {
        "process start s": process,
        "open to curves s": curves,
        "longest s": max(run["curves"] for run in runs),
        "both s": process + curves,
    }


def sizes(playwright: Playwright, address: str) -> str:
    """Return the sizes of the problem that the page makes of an address."""
    browser = launch(playwright)
    page = watched(browser, address)
    page.evaluate("watch.opened")
    K, T = page.evaluate("[window.page.state.hidden, window.page.state.tasks]")
    browser.close()
    return f"K = {K}, T = {T}"


def main() -> None:
    content = FILE.read_bytes()
    opening, moves, search = [], [], []
    with sync_playwright() as playwright:
        for address in ADDRESSES:
            problem = {"problem": sizes(playwright, address)}
            opening.append(problem | openings(playwright, address))
            moves += [problem | row for row in hand(playwright, address)]
            search += [problem | row for row in against_solve(playwright, address)]
    size = {"bytes": len(content), "compressed": len(gzip.compress(content))}
    save("page", {"file": [size], "opening": opening, "moves": moves, "best": search})
    assert size["bytes"] <= 250_000, "the file is too large"
    assert all(row["open to curves s"] <= 1 for row in opening), "it opens too slowly"
    assert all(row["median ms"] <= 40 and row["95 % ms"] <= 100 for row in moves), "moves lag"
    assert all(row["s"] <= 2 for row in search), "the best takes too long"


if __name__ == "__main__":
    main()
