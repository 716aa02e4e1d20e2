"""The time of the paper's figures: similarity at full settings on one core and two, all --quick.

The last table asks whether neighbours in a sweep should start each other: the optimum at the
previous similarity, alone, against the starts that `solve` makes itself.
"""

import tempfile
import time
from pathlib import Path

import pandas as pd

import replan
from common import save
from replan.paper import FIGURES, make
from replan.paper._parts import continual


def timed(names: list[str], quick: bool, workers: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        list(make(names, folder, quick=quick, workers=workers, progress=True))
        seconds = time.perf_counter() - begin
        tables = [pd.read_csv(path) for path in Path(folder).glob("*.csv")]
        gradients = sum(int(t["gradients"].sum()) for t in tables if "gradients" in t)
        problems = len(list((Path(folder) / "cache").iterdir()))
    return {"workers": workers, "problems": problems, "gradients": gradients, "seconds": seconds}


def side_by_side(names: list[str], quick: bool) -> list[dict]:
    rows = [timed(names, quick, workers) for workers in (1, 2)]
    for row in rows:
        row["speed-up"] = rows[0]["seconds"] / row["seconds"]
    return rows


def warm_starts() -> list[dict]:
    """Return losses and gradients of `solve` with and without a neighbour's optimum as a start."""
    rows = []
    for seed in range(3):
        before = None
        for similarity in (0.3, 0.35, 0.4):
            problem = replan.Problem.from_dict(continual(similarity, seed, steps=250))
            plan = replan.solve(problem)
            if before is not None:
                row = {"seed": seed, "similarity": similarity}
                for starts in (2, 0):
                    for start in (None, before):
                        found = replan.solve(problem, start=start, starts=starts)
                        what = f"{starts} random" + (" + neighbour" if start else "")
                        row[f"loss, {what}"] = found.loss
                        row[f"gradients, {what}"] = found.statistics["gradients"]
                rows.append(row)
            before = plan.protocol
    return rows


if __name__ == "__main__":
    list(make(["readout"], tempfile.mkdtemp(), quick=True))  # compiles what is not in numba's cache
    save(
        "figures",
        {
            "similarity, full setting": side_by_side(["similarity"], quick=False),
            "all --quick": side_by_side(list(FIGURES), quick=True),
            "a neighbour's optimum as a start": warm_starts(),
        },
    )
