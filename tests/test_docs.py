"""What the pages show runs as it stands, and prints what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documented import assert_alike, check_notebook
from pages import BLOCK, run_page

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
RUN = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]
WORDS = 23_900


@pytest.fixture
def folder(tmp_path, monkeypatch, registries):
    """A folder to run a page in; what it registers and imports is forgotten in the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), *sys.path]))
    modules = set(sys.modules)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        if path.stem not in modules:
            sys.modules.pop(path.stem, None)


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "README.md", *RUN], ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_shows(page, folder):
    if page.stem == "training-loops":
        pytest.importorskip("torch")
    if page.stem in ("quickstart", "models"):
        pytest.importorskip("jax")
    if page.stem == "models":
        pytest.importorskip("numba")  # in `make test-reproduction`
    for shown, printed in run_page(page, folder):
        if page.stem == "README":  # it shows the first of several results
            printed = "".join(printed.splitlines(keepends=True)[: len(shown.splitlines())])
        assert_alike(printed, shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "own-model"])
def test_a_notebook_runs_and_says_what_is_stored(name):
    check_notebook(name)


@pytest.mark.slow
def test_the_documented_sweep_runs_as_a_script(tmp_path):
    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    [code] = [code for _, code in BLOCK.findall(text) if code.startswith("# experiment.py")]
    (tmp_path / "experiment.py").write_text(code)
    command = [sys.executable, "experiment.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("loss") == len(list((tmp_path / "cache").iterdir())) == 4


def test_the_readme_has_a_sentence_and_a_picture_before_two_commands():
    before, first, *_ = re.split(r"```\w+\n", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert "](docs/images/compare.svg)" in before
    assert [line.split()[1] for line in first.splitlines()[:2]] == ["demo", "test"]


def test_the_pages_are_short():
    others = [ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES + others) <= WORDS
    assert len(PAGES) == 12  # and the changelog


def test_links_lead_somewhere():
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    houses = [ROOT / "benchmarks" / "README.md", ROOT / "reproduction" / "README.md"]
    for page in [*top, *houses, *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_picture_is_used_sharp_and_follows_light_and_dark():
    pages = [ROOT / "README.md", *PAGES]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name}" in text
        if picture.suffix == ".gif":
            [shown] = set(re.findall(rf'images/{picture.name}" width="(\d+)"', text))
            assert int.from_bytes(picture.read_bytes()[6:8], "little") >= 2 * int(shown)
        else:
            assert "prefers-color-scheme: dark" in picture.read_text(encoding="utf-8")
