"""Make docs/images/paint.gif, on which a hand paints replay: `make paint-gif`.

It is taken from the real page, build/replan.html (`make page`), in headless Chromium by playwright
(extra `bench`): a mouse that is moved from here paints on the bar and asks for the best, and every
frame is a screenshot. Only the hand is drawn, as Chromium shows no cursor.
"""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
PAGE, GIF = ROOT / "build" / "replan.html", ROOT / "docs" / "images" / "paint.gif"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
VIEW = {"width": 640, "height": 720}
SHOWN = ("h1:visible", "#frame", "#reading", "#best")  # the rest is cut off, or hidden between them
ABSENT = "nav, .lead, .controls, [aria-labelledby=keep], header p, .words, .cursor, footer"
HIDDEN = f"{ABSENT} {{ display: none !important }}"
MARGIN = 12
FRAME = 60  # milliseconds
COLOURS = 255  # and one for what stays the same from frame to frame

# Fractions of the bar: time, and the share of task 1. The first is where the mouse is pressed.
STROKE = np.array([(0.5, 0.02), (0.53, 0.3), (0.62, 0.38), (0.8, 0.33), (1.0, 0.36)])
BEGIN = np.array([(1.05, 0.3)])  # on the right of the bar, where nothing is

HAND = """
  const hand = document.createElement("div");
  hand.innerHTML = `<svg viewBox="0 0 30 34" style="width: 30px; fill: #fff" stroke="#111"
    stroke-width="1.8" stroke-linejoin="round"><path d="M9 3.5c1.6 0 2.6 1.1 2.6 2.7v8.4l1.2-.1c.3
    -1.2 1.3-1.8 2.4-1.8 1.3 0 2.2.8 2.4 2 .4-.6 1.1-.9 1.9-.9 1.3 0 2.2.9 2.4 2.2.4-.4.9-.6
    1.5-.6 1.6 0 2.6 1.2 2.6 3v5.2c0 4.4-2.6 8.4-8 8.4-4.6 0-6.6-1.8-8.6-5.2L4.2 19.8c-.8-1.5-.5
    -2.8.6-3.4 1-.6 2-.2 2.9.9V6.2c0-1.6.7-2.7 1.3-2.7z"/></svg>`;
  hand.style = "position: fixed; pointer-events: none; filter: drop-shadow(0 1px 2px #0006)";
  document.body.append(hand);
  const follow = ({ clientX, clientY, buttons }) => {
    hand.style.left = `${clientX - 9}px`;
    hand.style.top = `${clientY - 4}px`;
    hand.style.transform = buttons ? "scale(0.9)" : "";
  };
  for (const type of ["pointermove", "pointerdown", "pointerup"])
    addEventListener(type, follow, true);
"""


def path(points: np.ndarray, count: int) -> Iterator[tuple[float, float]]:
    """Yield points along the lines between points (n, 2), slower at both ends."""
    lengths = np.linalg.norm(np.diff(points, axis=0), axis=1)
    way = np.concatenate([[0.0], np.cumsum(lengths)])
    at = way[-1] * (1 - np.cos(np.pi * np.linspace(0, 1, count))) / 2
    yield from zip(*(np.interp(at, way, axis) for axis in points.T), strict=True)


class Film:
    """Frames, each with its time on the screen in milliseconds."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.times: list[int] = []
        self.at = place(page, "#paint-shares", BEGIN)

    def shoot(self, milliseconds: int = FRAME) -> None:
        """Take a frame when the page has drawn what was done."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(picture)
        self.times.append(milliseconds)

    def move(self, points: np.ndarray, count: int) -> None:
        """Move the mouse along points of the screen."""
        for x, y in path(np.vstack([self.at, points]), count):
            self.page.mouse.move(x, y)
            self.shoot()
        self.at = points[-1:]


def place(page: Page, selector: str, points: np.ndarray) -> np.ndarray:
    """Return fractions (n, 2) of a box, from its lower left corner, as points of the screen."""
    box = page.locator(selector).bounding_box()
    x, y = points.T
    return np.column_stack(
        [box["x"] + x * (box["width"] - 1), box["y"] + (1 - y) * (box["height"] - 1)]
    )


def play(page: Page) -> Film:
    """Paint, ask for the best, and look at it."""
    film = Film(page)
    begin = film.at
    page.mouse.move(*begin[0])
    film.shoot(600)
    stroke = place(page, "#paint-shares", STROKE)
    film.move(stroke[:1], 10)
    page.mouse.down()
    film.move(stroke[1:], 42)
    page.mouse.up()
    film.shoot(400)
    film.move(place(page, "#best", np.array([(0.6, 0.4)])), 14)
    page.mouse.down()
    film.shoot()
    page.mouse.up()
    film.shoot(400)  # it searches
    page.wait_for_function("window.page.best && !/Cancel/.test(best.textContent)")
    film.shoot(500)
    film.move(begin, 12)  # to where the film begins again
    film.shoot(2000)
    return film


def shown(page: Page) -> tuple[int, int, int, int]:
    """Return the part of the screen to keep: left, top, right, bottom."""
    boxes = [page.locator(selector).bounding_box() for selector in SHOWN]
    top = min(box["y"] for box in boxes) - MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + MARGIN
    return 0, 2 * max(0, round(top)), 2 * VIEW["width"], 2 * round(bottom)


def save(frames: list[Image.Image], times: list[int]) -> None:
    """Write the film in its most frequent colours: so that large areas keep theirs exactly."""
    codes = [np.asarray(frame).astype(np.int32) @ (1 << 16, 1 << 8, 1) for frame in frames]
    all_colours, counts = np.unique(np.stack(codes), return_counts=True)
    rgb = np.column_stack([all_colours >> 16, all_colours >> 8 & 255, all_colours & 255])
    palette = rgb[np.argsort(counts)[-COLOURS:]]
    nearest = np.array([np.abs(palette - colour).sum(axis=1).argmin() for colour in rgb], np.uint8)
    images = []
    for frame in codes:
        image = Image.fromarray(nearest[np.searchsorted(all_colours, frame)])
        image.putpalette(palette.astype(np.uint8).tobytes())
        images.append(image)
    images[0].save(GIF, save_all=True, append_images=images[1:], duration=times, loop=0)


def main() -> None:
    """Take the film and write it."""
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, CHROMIUMS)))
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(
            viewport=VIEW, bypass_csp=True, color_scheme="light", device_scale_factor=2
        )
        page.goto(PAGE.as_uri())
        page.wait_for_function("window.page?.losses")
        page.add_style_tag(content=HIDDEN)
        page.evaluate("dispatchEvent(new Event('resize'))")  # the picture takes the room
        page.evaluate(HAND)
        page.wait_for_timeout(FRAME)
        film = play(page)
        part = shown(page)
        browser.close()
    save([frame.crop(part) for frame in film.frames], film.times)
    size, length = GIF.stat().st_size, sum(film.times) / 1000
    print(
        f"{GIF.relative_to(ROOT)}: {size / 1000:.0f} kB, {length:.1f} s, {len(film.frames)} frames"
    )


if __name__ == "__main__":
    main()
