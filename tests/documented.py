"""What documents show: API entries and examples in docstrings, notebooks, printed results."""

import ast
import doctest
import inspect
import re
import runpy
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import replan

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
ENTRIES = [
    name
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def public_names():
    """Yield all that is in the `__all__` of a module whose name is public, read from its source."""
    for path in sorted((SOURCE / "replan").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if any(part.startswith("_") for part in parts):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (".".join([*parts, name]) for name in ast.literal_eval(node.value))


def find(name):
    """Return what a public name stands for."""
    module, _, last = name.rpartition(".")
    if name == "replan.AutoModel":  # a stand-in where there is no JAX
        module = "replan.models.auto"
    return getattr(import_module(module), last)


def docstring(name):
    """Return the docstring of a public name; that of data follows its assignment in the source."""
    thing, last = find(name), name.rpartition(".")[2]
    home = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", "")
    if home.startswith("replan") and not isinstance(thing, replan.models.Knob):
        return inspect.getdoc(thing) or ""
    for path in sorted((SOURCE / "replan").rglob("*.py")):
        found = _after_assignment(ast.parse(path.read_text(encoding="utf-8")), last)
        if found:
            return found
    return ""


def _after_assignment(tree, name):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for first, second in pairwise(body) if isinstance(body, list) else ():
            if isinstance(first, ast.AnnAssign | ast.Assign) and isinstance(second, ast.Expr):
                target = first.target if isinstance(first, ast.AnnAssign) else first.targets[0]
                if ast.unparse(target) == name and isinstance(second.value, ast.Constant):
                    return inspect.cleandoc(second.value.value)
    return ""


def run_example(name):
    """Run the example of a public name after that of its module; return how many lines it has."""
    names = {"np": np, "replan": replan, "__name__": "__main__"}
    texts = [_set_up(name), docstring(name)]
    tests = [doctest.DocTestParser().get_doctest(text, names, name, None, 0) for text in texts]
    printed = []
    for test in tests:
        test.globs = names
        doctest.DocTestRunner(verbose=False).run(test, out=printed.append, clear_globs=False)
    assert not printed, "".join(printed)
    return len(tests[-1].examples)


def _set_up(name):
    """Return the docstring, with examples, of the module that a name is from, or of its package."""
    home = getattr(find(name), "__module__", None) or name.rpartition(".")[0]
    while home.startswith("replan"):
        text = import_module(home).__doc__ or ""
        if ">>>" in text:
            return text
        home = home.rpartition(".")[0]
    return ""


def assert_alike(printed, shown):
    """The same words, and the same numbers to 5 %; what is below 1e-9 counts as rounding.

    How much work a search takes, and what it leaves to gain, depend on the last bits of numbers,
    which processors round in other ways: both may differ.
    """
    work = r"\d+(?= gradients| roll-outs)|(?<=at most )\S+(?= % of)"
    printed, shown = (re.sub(work, "#", text) for text in (printed, shown))
    number = r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?"
    assert re.sub(number, "#", printed).split() == re.sub(number, "#", shown).split()
    found, wanted = (list(map(float, re.findall(number, text))) for text in (printed, shown))
    assert found == pytest.approx(wanted, rel=0.05, abs=1e-9)


def check_notebook(name):
    """Run a notebook in a kernel of its own; it must say and show what is stored."""
    tool = runpy.run_path(str(ROOT / "docs" / "run_notebooks.py"))
    path = ROOT / "docs" / "notebooks" / f"{name}.ipynb"
    shown, stored = (_outputs(book) for book in (tool["run"](path), tool["read"](path)))
    assert len(stored) >= 3
    assert [kinds for kinds, _ in shown] == [kinds for kinds, _ in stored]
    for (_, text), (_, kept) in zip(shown, stored, strict=True):
        assert_alike(text, kept)


def _outputs(book):
    """Return the kinds of each output of a notebook, and its text."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [
        (
            sorted(output.get("data", {})),
            output.get("data", {}).get("text/plain", output.get("text")),
        )
        for output in outputs
    ]
