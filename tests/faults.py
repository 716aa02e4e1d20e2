"""Seed faults into the numerics, control and problem code, and count how many the tests catch.

    python tests/faults.py --count 100 --seed 0 --out faults.json

Each fault changes one place, in Python or in C: a sign, a factor, an index (one more or less), a
bound (< and <=, min and max) or a constant (doubled). Parts and kinds come in fixed proportions, in
an order that the seed alone decides; the place is any of that part and kind. Comments, texts,
signatures, declarations, errors and constants of modules are passed over.

A fault is caught if tests fail, or do not end, in a copy of the tree. Those near the fault run
first, and the others only where these pass: half a minute for most faults, ten for one missed.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"numerics": 5, "control": 3, "problem": 2}  # how often
FILES = [  # the part of a file is that of the first pattern found in its path
    (r"(registry|file|build|library|interrupt|threads|__init__)\.py|cpu\.c|replan\.h", None),
    (r"^core/shortest_path|^problem/", "problem"),
    (r"^(core|models)/", "numerics"),
    (r"^control/", "control"),
]
NEAR = [  # tests that look after a file: those of the first pattern found in its path
    (r"sgd", ["test_simulation.py"]),
    (r"gallery", ["models/test_gallery.py"]),
    (r"auto", ["models/test_auto.py"]),
    (r"integrator", ["test_curves.py"]),
    (r"rounding", ["test_protocol.py"]),
    (r"projection|relaxed_controls", ["core/test_control.py", "control/test_knobs.py"]),
    (r"^(core|models)/(?!short)", ["core/test_moments.py", "models/test_gradients.py"]),
    (r"levers", ["control/test_levers.py"]),
    (r"smoothing|risk|stacked", ["problem/test_ensemble.py", "control/test_ensembles.py"]),
    (r"^control/", ["control/test_objective_gradients.py", "control/test_solve.py"]),
    (r"", ["core/test_control.py", "problem", "control/test_limits.py"]),
]
OTHERS = ["core", "problem", "models", "control", "test_curves.py", "test_simulation.py", "cli"]
KINDS = {  # how often, and where in formatted code: the group is what changes
    "sign": (6, r"(?<=[\w)\]] )([-+])(?==? [\w(*-])|(?<=[=(,?:*/+] )(-)(?=[A-Za-z_(])"),
    "factor": (5, r"(?<=[\w)\]] )([*/])(?==? [\w(*-])"),
    "index": (4, r"(?<=[\w\])])\[((?!name|knob|key|free)[^][:,\n]*[A-Za-z_][^][:,\n]*)\]"),
    "bound": (3, r"(?<= )(<=|>=|<|>)(?= )|(?<![a-z])(?:f|arg)?(min|max)(?=(?:imum)?\()"),
    "constant": (2, r"(?<![\w.])(?<!e-)(\d+\.?\d*)(?![\w.])"),
}
SWAPPED = {"+": "-", "-": "+", "*": "/", "/": "*", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SWAPPED |= {"min": "max", "max": "min"}
SILENT = ast.Raise | ast.AnnAssign | ast.Assert | ast.Import | ast.ImportFrom
TYPE = r"\b(?:double|int|unsigned|void|\w+_t|flag|domain|limits|scratch|quadruples|network)\b"


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def code_of(path):
    """Return the text of a file with blanks in the place of what computes nothing."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        text = re.sub(r'/\*.*?\*/|"[^"\n]*"|sizeof\s*\([^)]*\)', blank, text, flags=re.S)
        text = re.sub(r"^\S.*?(?:^[{}]|;$)", blank, text, flags=re.S | re.M)  # outside functions
        return re.sub(
            rf"{TYPE}[ *]+(?:restrict )?\w+(?:\[[^\]\n]*\])*|\({TYPE}[ *]*\)", blank, text
        )
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    for node in [*tree.body, *ast.walk(tree)]:
        first, last = getattr(node, "lineno", 1), 0
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            last = node.body[0].lineno - 1
        elif isinstance(node, SILENT) or (node in tree.body and isinstance(node, ast.Assign)):
            last = node.end_lineno
        for i in range(first - 1, last):
            lines[i] = re.sub(r"[^\n]", " ", lines[i])
    return re.sub(r'"""\n?.*?"""|"[^"\n]*"|#[^\n]*', blank, "".join(lines), flags=re.S)


def all_places():
    """Return {(part, kind): [(path, first character, last, text), …]}."""
    found = {(part, kind): [] for part in PARTS for kind in KINDS}
    for path in sorted((ROOT / "src/replan").rglob("*.*")):
        inside = path.relative_to(ROOT / "src/replan").as_posix()
        part = next((part for pattern, part in FILES if re.search(pattern, inside)), None)
        if part is None or path.suffix not in (".py", ".c", ".h"):
            continue
        code = code_of(path)
        for kind, (_, pattern) in KINDS.items():
            for match in re.finditer(pattern, code):
                if match[match.lastindex] not in ("0", "1", "0.0", "1.0"):
                    place = inside, *match.span(match.lastindex), match[match.lastindex]
                    found[part, kind].append(place)
    return found


def changed(kind, text, rng):
    """Return what a fault makes of a place."""
    if kind == "index":
        return f"({text}) {rng.choice('+-')} 1"
    return str(2 * ast.literal_eval(text)) if kind == "constant" else SWAPPED[text]


def passed(folder, tests, seconds):
    """Whether the tests pass, and end, in a copy of the tree."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *(f"tests/{test}" for test in tests)], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:  # fmt: skip
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1800, help="longest run of tests")
    parser.add_argument("--out", type=Path, default=Path("faults.json"))
    given = parser.parse_args()
    rng, places, rows = random.Random(given.seed), all_places(), []
    often = {kind: number for kind, (number, _) in KINDS.items()}
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "demo"))
        if not passed(copy, OTHERS, given.seconds):
            sys.exit("tests fail without any fault: nothing can be learnt")
        while len(rows) < given.count:
            [part], [kind] = (rng.choices([*x], [*x.values()]) for x in (PARTS, often))
            inside, first, last, old = rng.choice(places[part, kind])
            new = changed(kind, old, rng)
            path = copy / "src/replan" / inside
            text = path.read_text(encoding="utf-8")
            path.write_text(f"{text[:first]}{new}{text[last:]}", encoding="utf-8")
            near = next(tests for pattern, tests in NEAR if re.search(pattern, inside))
            missed = passed(copy, near, given.seconds) and passed(copy, OTHERS, given.seconds)
            path.write_text(text, encoding="utf-8")
            line = text.count("\n", 0, first)
            fault = f"{inside}:{line + 1}: {old} -> {new} in {text.splitlines()[line].strip()}"
            rows.append({"part": part, "kind": kind, "fault": fault, "caught": not missed})
            print(f"{len(rows)}: {'MISSED' if missed else 'caught'}  {fault}", flush=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(row['caught'] for row in rows)} of {len(rows)} faults caught")


if __name__ == "__main__":
    main()
