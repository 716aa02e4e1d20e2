from replan import Problem


def test_new_writes_a_problem_that_loads_and_keeps_what_exists(run, refused):
    code, out, _ = run("new mine.toml")
    assert (code, "replan compare mine.toml" in out) == (0, True)
    assert Problem.load("mine.toml").duration == 25.0
    assert run("new other.toml --kind teacher-student")[0] == 0
    assert Problem.load("other.toml").duration == 25.0
    refused("new nodir/x.toml", "FILE")
    refused("new mine.toml", "FILE")
    code, _, err = run("new third.toml --kind teacher")
    assert (code, len(err.splitlines())) == (2, 1)
