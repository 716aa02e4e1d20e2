"""Builds the page: one file that needs no other and asks nobody for anything."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from pathlib import Path

import numpy as np

from replan import TeacherStudent, fit
from replan.page.compile import compile_core

HERE = Path(__file__).parent
PILOTS = HERE.parents[2] / "examples" / "pilots.csv"
SEEDS = range(1, 21)
HIDDEN = range(2, 7)

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
    """Return what the library makes: the core, the starts of two tasks, and a law."""
    fresh = {K: _base64([_fresh(K, seed) for seed in SEEDS]) for K in HIDDEN}
    deflate = zlib.compressobj(9, wbits=-15)
    wasm = base64.b64encode(deflate.compress(compile_core()) + deflate.flush()).decode()
    law = json.dumps(fit(PILOTS).to_dict())
    values = {"WASM": json.dumps(wasm), "STARTS": json.dumps(fresh), "EXAMPLE": json.dumps(law)}
    return "".join(f"export const {name} = {value};\n" for name, value in values.items())


def _fresh(hidden: int, seed: int) -> np.ndarray:
    """Return Q, the students along the frame of two teachers, and V."""
    start = TeacherStudent.similar(0.0, tasks=2, hidden=hidden).fresh(seed)  # its frame is 1
    return np.concatenate([start.Q.ravel(), start.M.ravel(), start.V.ravel()])


def _base64(rows: list[np.ndarray]) -> str:
    return base64.b64encode(np.ascontiguousarray(rows, dtype="<f8").tobytes()).decode()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build(), encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")
