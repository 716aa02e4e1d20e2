import json

import pytest

import replan


def test_solve_writes_a_plan_that_evaluates(run, tmp_path):
    def value(line):
        assert run(f"evaluate problem.toml {line} --json o.json")[0] == 0
        return json.loads((tmp_path / "o.json").read_text())["value"]

    code, out, err = run("solve problem.toml --json plan.json --plot plan.png --starts 1 --seed 3")
    assert (code, err) == (0, "")
    assert "focus on task" in out
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["statistics"]["seed"] == 3
    assert plan["settings"]["file"]["start"]["pretrain"]["seed"] == 1
    assert (tmp_path / "plan.png").exists()
    assert value("--protocol plan.json") == plan["value"]
    for name in ("interleaved", "no-replay", "focus-then-replay"):
        assert plan["value"] < value(f"--strategy {name}")


def test_a_file_may_ask_for_relu(run, tmp_path):
    text = (tmp_path / "problem.toml").read_text().replace("steps = 40", "steps = 6")
    (tmp_path / "relu.toml").write_text(text.replace("[start]", 'activation = "relu"\n[start]'))
    assert run("solve relu.toml --json plan.json --starts 1")[::2] == (0, "")
    plan = json.loads((tmp_path / "plan.json").read_text())
    problem = replan.Problem.load(tmp_path / "relu.toml")
    assert problem.model.activation == "relu"
    shown = replan.evaluate(problem, replan.Protocol.from_dict(plan))
    assert plan["value"] == pytest.approx(shown.loss, rel=1e-6)
    assert run("simulate relu.toml --protocol plan.json --dimension 50 --seeds 2")[::2] == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method relx", "`--method` expects one of relax, "),
        ("--starts -1", "`--starts` expects an integer of at least 0, got -1"),
        ("--tolerance 2", "`--tolerance` expects a finite number"),
        ("--max-gradients 0", "`--max-gradients` expects an integer of at least 1, got 0"),
        ("--protocol problem.toml", "`--protocol` expects a file name that ends in .json or .csv"),
        ("--protocol three.json", "`--protocol` expects a protocol of 2 tasks, got 3"),
    ],
)
def test_mistakes_name_the_option(run, options, message):
    code, out, err = run(f"solve problem.toml {options}")
    assert (code, out) == (2, "")
    assert err.startswith(f"replan: {message}")


def test_a_protocol_on_other_steps_is_averaged_and_that_is_said(run, tmp_path):
    line = "the 3 steps of other.json are averaged over the problem's 40\n"
    content = '{"duration": 10, "shares": [[1, 0], [0, 1], [1, 0]], "lr": [1, 1, 1]}'
    (tmp_path / "other.json").write_text(content)
    code, out, _ = run("solve problem.toml --starts 0 --protocol other.json --json plan.json")
    assert code == 0
    assert out.startswith(line)
    settings = json.loads((tmp_path / "plan.json").read_text())["settings"]
    assert (settings["starts"], settings["protocol"]) == (0, "other.json")
    code, out, _ = run("solve problem.toml --starts 0 --protocol p.json")  # one step: exact
    assert code == 0
    assert "averaged" not in out


def test_a_single_task(run, tmp_path):
    assert run("solve one.toml --json plan.json")[0] == 0
    assert json.loads((tmp_path / "plan.json").read_text())["tasks"] == [1] * 40
