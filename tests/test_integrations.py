"""Without the frameworks: `import replan` works, an integration says what to install."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import replan.integrations

BLOCK = "import sys; sys.modules['{0}'] = None; "


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_replan_needs_none_of_them():
    blocked = "".join(BLOCK.format(name) for name in ("torch", "lightning", "avalanche"))
    done = run(blocked + "import replan, replan.policies, replan.cli, replan.integrations")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "blocked", "install"),
    [
        ("torch", "torch", "pip install 'replan[torch]'"),
        ("lightning", "lightning", "pip install 'replan[lightning]'"),
        ("avalanche", "avalanche", "pip install 'replan[avalanche]'"),
    ],
)
def test_an_integration_says_what_to_install(module, blocked, install):
    done = run(BLOCK.format(blocked) + f"import replan.integrations.{module}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: replan.integrations.")
    assert install in last


def test_a_torchvision_that_does_not_fit_is_explained(tmp_path):
    message = "operator torchvision::nms does not exist"
    (tmp_path / "avalanche.py").write_text(f"raise RuntimeError('{message}')")
    done = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import replan.integrations.avalanche"
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: replan.integrations.avalanche needs Avalanche 0.6")
    assert "torchvision that fits your PyTorch" in last
    assert message in last


@pytest.mark.parametrize(
    "module", sorted(Path(*replan.integrations.__path__).glob("*.py")), ids=lambda path: path.stem
)
def test_an_integration_knows_no_concrete_policy(module):
    tree = ast.parse(module.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    taken = [a.name for i in imports if i.module.startswith("replan.policies") for a in i.names]
    assert set(taken) <= {"Decision", "Log", "Policy"}
