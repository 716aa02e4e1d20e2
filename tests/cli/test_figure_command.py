import json

import pytest


def test_a_figure_with_its_claims(run, tmp_path):
    code, out, err = run("figure readout --quick --out made --workers 1")
    assert (code, err) == (0, "")
    assert out.startswith("readout: wrote made/readout.png, made/readout.pdf, made/readout.csv\n")
    assert "\n  holds (1 of 1): " in out
    assert (tmp_path / "made" / "claims.md").exists()
    content = json.loads((tmp_path / "made" / "claims.json").read_text())
    assert content["figures"]["readout"]["command"] == "replan figure readout --quick"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("figure similarty", "`NAME` expects one of dynamics, similarity"),
        ("figure multitask --seeds 0", "`--seeds` expects an integer of at least 1, got 0"),
        (
            "figure readout --quick --workers 0",
            "`--workers` expects an integer of at least 1, got 0",
        ),
        ("figure readout --set gamma=1", "`--set` expects one of similarities; got 'gamma'"),
        ("figure readout --set gamma", "`--set` expects KEY=VALUE, got 'gamma'"),
        (
            "figure readout --set similarities=0.5,2 --workers 1",
            "`similarity` expects a finite number of at least 0 and at most",
        ),
    ],
)
def test_mistakes_in_a_figure_are_refused(run, words, message):
    code, _, err = run(words)
    assert code == 2
    assert message in err
