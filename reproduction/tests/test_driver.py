import json

import pandas as pd
import pytest

from reproduction import __main__ as driver
from reproduction.theory import dropout, readout

QUICK = ["--quick", "--workers", "1"]
TWO = ["--set", "similarities=[0.0, 0.5]"]


def test_names_are_listed(capsys):
    assert driver.main([]) == 0
    assert set(driver.FIGURES) <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["fig-2", "--out", "x"],
        ["readout"],
        ["readout", "--out", "x", "--set", "gamma=1"],
        ["readout", "--out", "x", "--set", "similarities"],
    ],
)
def test_bad_arguments_are_refused(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        driver.main(arguments)
    assert stop.value.code == 2
    assert not list(tmp_path.iterdir())


def test_outputs_and_claims_of_all_figures_in_a_folder(tmp_path, capsys):
    assert driver.main(["readout", *QUICK, *TWO, "--out", str(tmp_path)]) == 0
    few = ["--set", "seeds=1", "--set", "steps=10", "--set", "similarities=[0.1, 0.9]"]
    assert driver.main(["multitask", *QUICK, *few, "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    both = {f"{name}{end}" for name in ("readout", "multitask") for end in (".csv", ".png", ".pdf")}
    assert both | {"multitask-plans.csv", "readout-claims.json", "claims.md"} <= names
    assert list(pd.read_csv(tmp_path / "readout.csv")["similarity"]) == [0.0, 0.5]
    entry = json.loads((tmp_path / "readout-claims.json").read_text())
    assert entry["command"] == (
        "python -m reproduction readout --quick --set 'similarities=[0.0, 0.5]'"
    )
    text = (tmp_path / "claims.md").read_text()
    assert text.index("## multitask") < text.index("## readout")
    assert all(claim["statement"] in text for claim in entry["claims"])
    assert "holds (1 of 1): α_conv" in capsys.readouterr().out


def test_finished_cases_are_kept_until_the_code_changes(tmp_path, monkeypatch):
    calls, measured = [], readout.measured
    monkeypatch.setattr(readout, "measured", lambda x, **_: calls.append(x) or measured(x))
    command = ["readout", *QUICK, *TWO, "--out", str(tmp_path)]
    for digest, count in (("a", 4), ("a", 4), ("b", 8)):  # both layers of both
        monkeypatch.setattr(driver, "digest", lambda digest=digest: digest)
        assert driver.main(command) == 0
        assert len(calls) == count


def test_a_figure_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def missing(*_, **__):
        raise ImportError("needs jax")

    monkeypatch.setattr(dropout, "compute", missing)
    assert driver.main(["dropout", "readout", *QUICK, *TWO, "--out", str(tmp_path)]) == 1
    assert "dropout: needs jax" in capsys.readouterr().err
    assert (tmp_path / "readout.csv").exists()
