"""Builds the page: one file that needs no other and asks nobody for anything."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path

import numpy as np

from replan import TeacherStudent
from replan.page.compile import compile_core

HERE = Path(__file__).parent
SEEDS = range(1, 21)
HIDDEN, TASKS = (2, 3, 4), (2, 3)
GAMMAS = np.arange(100) / 100

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def build() -> str:
    """Return the page."""
    page = (HERE / "page.html").read_text(encoding="utf-8")
    style = (HERE / "style.css").read_text(encoding="utf-8")
    return page.replace("/* STYLE */", style).replace("/* SCRIPT */", bundle("main"))


def bundle(name: str) -> str:
    """Return a module and all that it imports as one script, each module in a scope of its own."""
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        if name in modules:
            return
        source = data() if name == "data" else (HERE / f"{name}.js").read_text(encoding="utf-8")
        for _, needed in _IMPORT.findall(source):
            add(needed)
        names = ", ".join(word for _, word in _EXPORT.findall(source))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const {\1} = \2Module;\n", source))
        modules[name] = f"const {name}Module = (() => {{\n{body}return {{ {names} }};\n}})();\n"

    add(name)
    return "".join(modules.values())


def data() -> str:
    """Return the module of what the library computes: the core and the starts."""
    frames = {T: _base64([_frame(T, g) for g in GAMMAS]) for T in TASKS}
    fresh = {
        f"{K},{T}": _base64([_fresh(K, T, seed) for seed in SEEDS]) for K in HIDDEN for T in TASKS
    }
    wasm = base64.b64encode(compile_core()).decode()
    starts = json.dumps({"frames": frames, "fresh": fresh})
    return f'export const WASM = "{wasm}";\nexport const STARTS = {starts};\n'


def _frame(tasks: int, similarity: float) -> np.ndarray:
    """Return the teachers in the basis in which `fresh` draws."""
    return TeacherStudent.similar(similarity, tasks=tasks).teacher_frame


def _fresh(hidden: int, tasks: int, seed: int) -> np.ndarray:
    """Return Q, the students along the basis, and V: these do not depend on the similarity."""
    model = TeacherStudent.similar(0.0, tasks=tasks, hidden=hidden)
    start = model.fresh(seed)
    along = start.M @ np.linalg.inv(model.teacher_frame).T
    return np.concatenate([start.Q.ravel(), along.ravel(), start.V.ravel()])


def _base64(rows: list[np.ndarray]) -> str:
    return base64.b64encode(np.ascontiguousarray(rows, dtype="<f8").tobytes()).decode()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build(), encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")
