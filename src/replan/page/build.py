"""Builds the page: one file that needs no other and asks nobody for anything."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from pathlib import Path

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
    deflate = zlib.compressobj(9, wbits=-15)
    wasm = base64.b64encode(deflate.compress(compile_core()) + deflate.flush()).decode()
    starts = {K: [_start(K, seed) for seed in SEEDS] for K in HIDDEN}
    values = {"WASM": wasm, "STARTS": starts, "EXAMPLE": json.dumps(fit(PILOTS).to_dict())}
    return "".join(f"export const {name} = {json.dumps(x)};\n" for name, x in values.items())


def _start(hidden: int, seed: int) -> list[str]:
    """Return Q, the students along each of two orthogonal teachers, and V, in base64."""
    start = TeacherStudent.similar(0.0, tasks=2, hidden=hidden).fresh(seed)
    return [base64.b64encode(x.tobytes()).decode() for x in (start.Q, *start.M.T, start.V)]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(build(), encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")
