from pathlib import Path

import pytest

from replan.cli import explore

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """The addresses that a browser was asked to open; there is a page."""
    page = tmp_path / "replan.html"
    page.write_text("a page")
    monkeypatch.setattr(explore, "PAGES", (page,))
    addresses = []
    monkeypatch.setattr(explore.webbrowser, "open", addresses.append)
    return addresses


def test_explore_opens_the_page_and_prints_its_address(run, opened):
    code, out, _ = run("explore")
    assert (code, out.strip()) == (0, opened[0])
    assert opened[0].startswith("file://") and opened[0].endswith("replan.html")


def test_explore_puts_the_problem_into_the_address(run, opened, tmp_path):
    text = (tmp_path / "problem.toml").read_text()
    (tmp_path / "seed.toml").write_text(text.replace("60.0", "1000.0"))
    run("explore seed.toml")
    assert "g=0.3&k=2&t=2&a=erf" in opened[-1] and "&s=1" in opened[-1]
    run("explore problem.toml")  # another pretraining: the overlaps themselves
    assert "&x=" in opened[-1]


def test_explore_refuses_what_the_page_cannot_show(run, opened, refused, tmp_path):
    refused("explore one.toml", "FILE")
    refused("explore ensemble.toml", "FILE")
    refused(f"explore {EXAMPLES / 'three-tasks.toml'}", "FILE")
    text = (tmp_path / "problem.toml").read_text()
    for section in ("[objective]\nweights = [0.9, 0.1]", "[limits]\nmax_share = [0.4, 1.0]"):
        (tmp_path / "other.toml").write_text(f"{text}\n{section}\n")
        refused("explore other.toml", "FILE")
    for old, new in {
        "hidden = 2": "hidden = 9",
        "duration = 2.0": "duration = 900.0",
        "steps = ": "lr = 5.5\nsteps = ",
    }.items():
        (tmp_path / "other.toml").write_text(text.replace(old, new, 1))
        refused("explore other.toml", "FILE")
    assert opened == []


def test_explore_says_what_the_page_searches_otherwise(run, opened, tmp_path):
    text = (tmp_path / "problem.toml").read_text()
    (tmp_path / "coarse.toml").write_text(text.replace("steps = ", "steps = 4 # "))
    code, _, err = run("explore coarse.toml")
    assert (code, len(opened)) == (0, 1) and "250 steps" in err


def test_explore_says_how_to_build_a_page_that_is_missing(run, monkeypatch):
    monkeypatch.setattr(explore, "PAGES", ())
    code, _, err = run("explore")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "make page" in err
