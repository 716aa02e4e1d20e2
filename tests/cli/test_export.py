import json

import pytest


@pytest.fixture
def plan(run):
    """Write plan.json."""
    assert run("solve problem.toml --json plan.json")[0] == 0


def test_a_plan_in_the_fewest_stages_that_are_as_good(run, plan, tmp_path):
    code, out, err = run("export plan.json --steps 1000 --to json --names web,code")
    assert code == 0
    stages = json.loads(out)["stages"]
    assert err.startswith("loss in 1 to 4 stages: ")
    losses, own = err.removeprefix("loss in 1 to 4 stages: ").split("; the plan: ")
    losses = [float(x) for x in losses.split(",")]
    assert float(own) == pytest.approx(
        json.loads((tmp_path / "plan.json").read_text())["value"], rel=1e-3
    )
    enough = next(k for k, loss in enumerate(losses) if loss <= 1.01 * losses[-1])
    assert len(stages) == enough + 1
    assert list(stages[0]["weights"]) == ["web", "code"]


def test_stages_of_their_own_files(run, plan, tmp_path):
    line = "export plan.json --steps 1000 --to energon --stages 2"
    out = run(f"{line} --out blend.yaml")[1]
    written = sorted(path.name for path in tmp_path.glob("blend*"))
    assert out == f"wrote {', '.join(written)}\n"
    texts = [(tmp_path / name).read_text() for name in written]
    assert run(line)[1] == "---\n".join(texts)
    assert 'path": "task_2"' in texts[0]


def test_a_rate_at_every_step(run, plan):
    code, out, err = run("export plan.json --steps 1000 --to lambda-lr")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"peak": 1.0, "factors": [1.0] * 1001}


def test_any_protocol(run, tmp_path):
    assert run("evaluate problem.toml --strategy alternating --json out.json")[0] == 0
    code, out, err = run("export out.json --steps 80 --to json --stages 1")
    assert (code, err) == (0, "")
    (stage,) = json.loads(out)["stages"]
    assert stage["weights"] == {"task_1": 0.5, "task_2": 0.5}
    assert run("export p.json --steps 80 --to csv")[1].splitlines()[1] == "0,80,1.0,0.0,1.0"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("p.json --to torchtitan --steps 9", "--to"),
        ("p.json --to csv", "--steps"),
        ("p.json --to csv --steps 0", "--steps"),
        ("p.json --to csv --steps 9 --names a", "--names"),
        ("p.json --to csv --steps 9 --multiple 10", "--multiple"),
        ("plan.json --to csv --steps 9 --names a", "--names"),
        ("plan.json --to csv --steps 9 --stages 0", "--stages"),
        ("p.json --to csv --steps 9 --stages 0", "--stages"),
        ("p.json --to csv --steps 9 --out nowhere/o.csv", "--out"),
        ("problem.toml --to csv --steps 9", "FILE"),
    ],
)
def test_mistakes_name_the_option(refused, plan, line, name):
    refused(f"export {line}", name)
