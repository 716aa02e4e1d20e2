from replan import Problem


def test_new_writes_a_problem_that_loads_and_keeps_what_exists(run):
    code, out, _ = run("new mine.toml")
    assert code == 0
    assert "replan compare mine.toml" in out
    assert Problem.load("mine.toml").duration == 25.0
    code, _, err = run("new nodir/x.toml")
    expected = "replan: `FILE` expects a file in a folder that exists, got 'nodir/x.toml'\n"
    assert (code, err) == (2, expected)
    assert run("new other.toml --kind teacher-student")[0] == 0
    assert Problem.load("other.toml").duration == 25.0
    code, _, err = run("new third.toml --kind teacher")
    assert (code, "`model.kind` expects one of" in err) == (2, True)
    code, _, err = run("new mine.toml")
    assert (code, err) == (2, "replan: `FILE` expects a new file, got 'mine.toml', which exists\n")
