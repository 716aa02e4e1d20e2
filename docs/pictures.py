"""Draw docs/images by name: `python -m docs.pictures compare plan stream pilots tuned levers`.

Black and white become what the page around a picture asks for, light or dark. `levers` draws the
tables that `python -m reproduction levers --out figures` has written.
"""

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

import replan
from replan.files import FilePath

ROOT = Path(__file__).resolve().parents[1]
INK = """svg { color: #1b1b1b; fill: currentColor }
@media (prefers-color-scheme: dark) { svg { color: #dcdfe4 } }"""


def compare(path: FilePath) -> None:
    """Draw strategies and the optimum on the paper's Fig. 2."""
    problem = replan.Problem.load(ROOT / "examples" / "fig2.toml")
    replan.compare(problem, optimum=True).plot(path)


def plan(path: FilePath) -> None:
    """Draw the optimum of the same."""
    replan.solve(replan.Problem.load(ROOT / "examples" / "fig2.toml")).plot(path)


def stream(path: FilePath) -> None:
    """Draw the plan of docs/planning.md for tasks that arrive and depart."""
    model = replan.TeacherStudent.similar(0.3, tasks=3, hidden=3)
    times = {"arrivals": [0, 5, 15], "departures": [20, float("inf"), float("inf")]}
    limits = replan.Limits(max_replay=0.3)
    start = model.pretrain(seed=1)
    problem = replan.Problem(model, start, duration=30.0, steps=60, limits=limits, **times)
    replan.solve(problem).plot(path)


def pilots(path: FilePath) -> None:
    """Draw the fit of the example's pilots."""
    replan.fit(ROOT / "examples" / "pilots.csv").plot(path)


def tuned(path: FilePath) -> None:
    """Draw what the example of docs/training-loops.md finds."""
    page = (ROOT / "docs" / "training-loops.md").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    names["tuned"].plot(path)


def levers(path: FilePath) -> None:
    """Draw what each lever is worth against similarity."""
    from reproduction.drawing import STYLE
    from reproduction.theory.levers import draw

    names = {"levers": "levers.csv", "without": "levers-without.csv"}
    with matplotlib.rc_context(STYLE):
        tables = {name: pd.read_csv(ROOT / "figures" / file) for name, file in names.items()}
        draw(tables).savefig(path)


def follow_the_page(svg: str) -> str:
    """Return a picture of matplotlib's with inks instead of black and white."""
    svg = re.sub(r" *<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    svg = re.sub(r"^(L \S+\.\d\d)\d* (\S+\.\d\d)\d*", r"\1 \2", svg, flags=re.MULTILINE)
    svg = re.sub(r"(L \S+ (\S+) \n)(?:L \S+ \2 \n)+(?=L \S+ \2 \n)", r"\1", svg)  # on one line
    svg = svg.replace("#ffffff", "none").replace("#e6e6e6", "currentColor; stroke-opacity: 0.12")
    svg = svg.replace("#404040", "#808080")
    svg = re.sub("#000000|#440154|#550044|#663333", "currentColor", svg)
    svg = svg.replace("*{stroke-linejoin", f"{INK}\n*{{stroke-linejoin", 1)
    return re.sub(r"\s+", " ", svg) + "\n"


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "replan"  # the same file from the same numbers
    for name in sys.argv[1:]:
        picture = ROOT / "docs" / "images" / f"{name}.svg"
        globals()[name](picture)
        picture.write_text(follow_the_page(picture.read_text("utf-8")), "utf-8")
        print(f"{picture.name}: {picture.stat().st_size // 1000} kB")
