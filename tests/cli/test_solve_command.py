import json


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


def test_a_single_task(run, tmp_path):
    assert run("solve one.toml --json plan.json")[0] == 0
    assert json.loads((tmp_path / "plan.json").read_text())["tasks"] == [1] * 40
