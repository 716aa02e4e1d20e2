import json

import numpy as np
import pytest


def test_simulate_beside_the_theory(run, tmp_path):
    code, out, err = run(
        "simulate problem.toml --strategy interleaved --dimension 200 --runs 3 "
        "--json sgd.json --csv sgd.csv --plot sgd.png"
    )
    assert (code, err) == (0, "")
    assert "3 runs of SGD, N = 200" in out
    content = json.loads((tmp_path / "sgd.json").read_text())
    assert np.shape(content["losses"]) == (3, 2)
    assert (content["runs"], content["seed"], content["dimension"]) == (3, 0, 200)
    assert content["settings"]["strategy"] == "interleaved"
    assert (tmp_path / "sgd.csv").exists()
    assert (tmp_path / "sgd.png").exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--runs 0", "--runs"),
        ("--order sorted", "--order"),
        ("--engine half", "--engine"),
        ("--set seed=1.5", "--set seed"),
        ("--dimension 3", "--dimension"),
        (f"--dimension {10**18}", "--dimension"),
        (f"--seed {10**30}", "--seed"),
    ],
)
def test_mistakes_name_the_option(refused, options, name):
    refused(f"simulate problem.toml --strategy random-order {options}", name)


def test_an_ensemble_is_refused(refused):
    refused("simulate ensemble.toml --strategy interleaved", "problem")


def test_runs_that_all_diverge_are_an_error_and_written(run, tmp_path):
    code, out, err = run(
        "simulate wild.toml --strategy interleaved --dimension 50 --runs 2 --json o.json"
    )
    assert (code, err) == (1, "replan: every run diverged: try a smaller `lr`\n")
    assert "0: diverged at sample" in out
    content = json.loads((tmp_path / "o.json").read_text())
    assert content["losses"] == [[None, None], [None, None]]
    assert content["mean"] == content["ode_losses"] == [None, None]
