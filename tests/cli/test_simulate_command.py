import json

import numpy as np
import pytest


def test_simulate_beside_the_theory(run, tmp_path):
    code, out, err = run(
        "simulate problem.toml --strategy interleaved --dimension 200 --seeds 3 "
        "--json sgd.json --csv sgd.csv --plot sgd.png"
    )
    assert (code, err) == (0, "")
    assert "3 runs of SGD, N = 200" in out
    content = json.loads((tmp_path / "sgd.json").read_text())
    assert np.shape(content["losses"]) == (3, 2)
    assert len(content["ode_losses"]) == 2
    assert content["settings"]["strategy"] == "interleaved"
    assert (tmp_path / "sgd.csv").exists()
    assert (tmp_path / "sgd.png").exists()


def test_too_few_dimensions_are_refused(run):
    code, _, err = run("simulate problem.toml --strategy interleaved --dimension 3")
    assert code == 2
    assert "`--dimension` expects at least 4" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seeds 0", "`--seeds` expects an integer of at least 1, got 0"),
        ("--order sorted", "`--order` expects one of spread, random"),
        ("--engine half", "`--engine` expects one of reduced, full"),
        ("--set seed=1.5", "`--set seed` expects an integer"),
    ],
)
def test_mistakes_name_the_option(run, options, message):
    code, _, err = run(f"simulate problem.toml --strategy random-order {options}")
    assert code == 2
    assert err.startswith(f"replan: {message}")


def test_simulate_reports_that_every_run_diverged_and_writes_what_there_is(run, tmp_path):
    code, out, err = run(
        "simulate wild.toml --strategy interleaved --dimension 50 --seeds 2 --json o.json"
    )
    assert (code, err) == (1, "replan: every run diverged: try a smaller `lr`\n")
    assert "run 0, 1: diverged at sample" in out or "run 0: diverged at sample" in out
    content = json.loads((tmp_path / "o.json").read_text())
    assert content["losses"] == [[None, None], [None, None]]
    assert content["mean"] == content["ode_losses"] == [None, None]
