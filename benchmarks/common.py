"""What the benchmarks share: times of peers run alternately, tables, and where results go."""

import ctypes
import json
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import replan

HERE = Path(__file__).parent


@dataclass
class Result:
    """What a peer of `solve` found, how many iterations it took and how it ended."""

    protocol: replan.Protocol
    iterations: int
    status: str


def compile_peer(folder: Path, source: str = "rate.c", *options: str) -> ctypes.CDLL:
    """Compile a peer written in C, by default plainly."""
    library = folder / f"{source}.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(HERE / source)]
    subprocess.run([*command, *(options or ("-O3",)), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def pointers(*arrays: np.ndarray) -> list:
    return [array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for array in arrays]


def best_times(*functions, repeats: int = 9, clock=time.perf_counter) -> list[float]:
    """Return the smallest time of each function; they are called alternately."""
    times = np.empty((repeats, len(functions)))
    for repeat in range(repeats):
        for i, function in enumerate(functions):
            begin = clock()
            function()
            times[repeat, i] = clock() - begin
    return times.min(axis=0).tolist()


def show(rows: list[dict]) -> str:
    """Return rows as a table of text."""
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    table = [list(rows[0]), *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    )


def save(name: str, tables: dict[str, list[dict]]) -> dict[str, list[dict]]:
    """Write the tables with the machine as JSON, and as text, to benchmarks/results.

    Tables of an earlier run that were not made again are kept, each with the machine that it was
    made on. Returns all tables.
    """
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {key: rows for key, rows in old.items() if isinstance(rows, list)}
    made, tables = tables, kept | tables
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    machine = {
        "cpu": _cpu(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cc": compiler.stdout.splitlines()[0],
        "replan": replan.__version__,
    }
    machines = {title: machine if title in made else old["machines"][title] for title in tables}
    text = "\n\n".join(f"{title}\n{show(rows)}" for title, rows in tables.items())
    print(text)
    content = {"command": f"python benchmarks/{name}.py", "machines": machines, **tables}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / f"{name}.txt").write_text(f"{text}\n\n{_where(machines)}\n", encoding="utf-8")
    return tables


def _where(machines: dict[str, dict[str, str]]) -> str:
    """Return, in a line for each machine, which tables were made there."""
    titles: dict[str, list[str]] = {}
    for title, machine in machines.items():
        about = ", ".join(f"{key} {value}" for key, value in machine.items())
        titles.setdefault(about, []).append(title)
    if len(titles) == 1:
        return next(iter(titles))
    return "\n".join(f"{', '.join(names)}: {about}" for about, names in titles.items())


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
