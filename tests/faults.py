"""Seed faults into the numerics, control and problem code, and count how many the tests catch.

    python tests/faults.py --count 100 --seed 0 --out faults.json

Each fault changes one place: a sign, a factor, a bound, an index or a comparison. It is caught if
the tests of that part of the code, run in a copy of the tree, fail or do not end. Faults in lines
that only raise or describe errors are not seeded. C is compiled again by the tests themselves.
Takes a minute or two a fault.
"""

import argparse
import ast
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {  # folders of src/replan, and the tests that look after them
    "core": ["core", "models", "test_simulation.py", "control/test_limits.py"],
    "models": ["models", "control/test_library.py"],
    "problem": ["problem", "control"],
    "control": ["control"],
}
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
C_SWAPS = {
    " + ": " - ", " - ": " + ", " += ": " -= ", " -= ": " += ", " * ": " / ", " / ": " * ",
    " < ": " <= ", " <= ": " < ", " > ": " >= ", "fmin(": "fmax(", "[k]": "[k - 1]", "0.5 ": "1.0 ",
    "2.0 ": "1.0 ",
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "argmin": "argmax", "argmax": "argmin"}


def places(tree):
    """Yield (node, fault) for every fault that can be seeded: a function that changes the node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            text = isinstance(node.left, ast.Constant | ast.JoinedStr) and isinstance(
                getattr(node.left, "value", ""), str
            )
            if not text:
                yield node, lambda n: setattr(n, "op", SWAPS[type(n.op)]())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield node, lambda n: setattr(n, "op", ast.UAdd())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, lambda n: n.ops.__setitem__(0, SWAPS[type(n.ops[0])]())
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            yield node, _next_index
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            if node.value not in (0, 1, -1):
                yield node, lambda n: setattr(n, "value", n.value * 2)
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield node, lambda n: setattr(n, "attr", NAMES[n.attr])


def _next_index(node):
    node.slice = ast.BinOp(node.slice, ast.Sub(), ast.Constant(1))


def silent(tree):
    """Return the lines that compute nothing: docstrings, annotations, errors, module constants."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.AnnAssign | ast.arguments | ast.Assert):
            lines |= set(range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith(
            ("__repr", "__str", "_repr")
        ):
            lines |= set(range(node.lineno, node.end_lineno + 1))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            lines |= set(range(node.lineno, node.end_lineno + 1))
    return lines


def seeded(path, choose):
    """Return the source of a file with one fault, and where it is; None where there is no place."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return seeded_c(path.name, text, choose)
    tree = ast.parse(text)
    passed_over = silent(tree)
    found = [(node, fault) for node, fault in places(tree) if node.lineno not in passed_over]
    if not found:
        return None
    node, fault = choose(found)
    before = ast.unparse(node)
    fault(node)
    ast.fix_missing_locations(tree)
    return ast.unparse(tree), f"{path.name}:{node.lineno}: {before} -> {ast.unparse(node)}"


def seeded_c(name, text, choose):
    """As `seeded`: an operator or an index is changed in a line of C that computes something."""
    code = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.S)
    found = []
    for number, line in enumerate(code.splitlines()):
        if line.startswith("    ") and "=" in line and not line.lstrip().startswith("for"):
            for match in re.finditer("|".join(map(re.escape, C_SWAPS)), line):
                found.append((number, *match.span(), C_SWAPS[match[0]]))
    if not found:
        return None
    number, begin, end, new = choose(found)
    lines = text.splitlines()
    before = lines[number]
    lines[number] = f"{before[:begin]}{new}{before[end:]}"
    return "\n".join(
        lines
    ) + "\n", f"{name}:{number + 1}: {before.strip()} -> {lines[number].strip()}"


def caught(folder, tests, seconds):
    """Return whether the tests fail, or do not end, in a copy of the tree."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *tests], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(folder / "src"), "PATH": "/usr/bin:/bin"},
    ) as process:  # fmt: skip
        try:
            return process.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900, help="longest run of the tests")
    parser.add_argument("--out", type=Path, default=Path("faults.json"))
    given = parser.parse_args()
    rng = random.Random(given.seed)
    sources = [
        path
        for part in PARTS
        for path in sorted((ROOT / "src/replan" / part).rglob("*.*"))
        if path.suffix in (".py", ".c", ".h") and path.name not in ("build.py", "cpu.c")
    ]
    sizes = [len(path.read_text(encoding="utf-8")) for path in sources]
    rows = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "demo"))
        while len(rows) < given.count:
            [path] = rng.choices(sources, sizes)
            fault = seeded(path, rng.choice)
            if fault is None:
                continue
            inside = path.relative_to(ROOT)
            (copy / inside).write_text(fault[0], encoding="utf-8")
            part = inside.parts[2]
            tests = [f"tests/{name}" for name in PARTS[part]]
            row = {"part": part, "fault": fault[1], "caught": caught(copy, tests, given.seconds)}
            shutil.copy(path, copy / inside)
            rows.append(row)
            print(f"{len(rows)}: {'caught' if row['caught'] else 'MISSED'}  {fault[1]}", flush=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(row['caught'] for row in rows)} of {len(rows)} faults caught")


if __name__ == "__main__":
    main()
