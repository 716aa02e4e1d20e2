import subprocess
import sys


def test_without_panel_it_says_what_to_install(tmp_path):
    program = "import sys; sys.modules['panel'] = None; from replan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "explore"], capture_output=True, text=True, cwd=tmp_path
    )
    expected = "replan: the explorer needs KnobLayout: pip install 'replan[explore]'\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_a_bad_file_is_told_in_one_line(run, tmp_path):
    code, _, err = run("explore absent.toml")
    assert (code, err) == (2, "replan: absent.toml: No such file or directory\n")
    (tmp_path / "big.toml").write_text(
        (tmp_path / "problem.toml").read_text().replace("hidden = 2", "hidden = 50")
    )
    code, _, err = run("explore big.toml")
    assert code == 2
    assert err == (
        "replan: big.toml: `model.hidden` expects an integer of at least 1 and at most 6, got 50\n"
    )
