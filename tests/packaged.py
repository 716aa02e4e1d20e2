"""A short tour of an installed package; run by `make test-package` in fresh environments.

Everything a dependency is needed for is used once: the compiled core, the solvers, tables,
pictures, problem files and the command line.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import replan


def command_line(*words: str, folder: str) -> str:
    command = Path(sys.executable).with_name("replan")
    return subprocess.run(
        [command, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    assert Path(replan.__file__).is_relative_to(sys.prefix), "this is not the installed package"
    model = replan.TeacherStudent.similar(0.3)
    problem = replan.Problem(model, model.fresh(seed=1), duration=5.0, steps=20)
    plan = replan.solve(problem)
    mixed = replan.evaluate(problem, replan.strategies.interleaved(problem))
    assert plan.status == "converged"
    assert plan.loss < mixed.loss
    runs = replan.simulate(problem, plan.protocol, dimension=200, runs=2)
    assert len(runs.to_frame()) == 2 * len(runs.times)
    with TemporaryDirectory() as folder:
        plan.plot(f"{folder}/plan.pdf")
        assert command_line("--version", folder=folder).strip().endswith(version("replan"))
        command_line("new", "problem.toml", folder=folder)
        command_line("evaluate", "problem.toml", "--strategy", "interleaved", folder=folder)
        made = command_line("compare", "problem.toml", "--strategy", "interleaved", folder=folder)
        assert "interleaved" in made
    print(f"replan {version('replan')}:", *versions())


def versions() -> list[str]:
    names = ["numpy", "scipy", "matplotlib", "click", "tqdm", "pandas"]
    return [f"{name} {version(name)}" for name in names]


if __name__ == "__main__":
    main()
