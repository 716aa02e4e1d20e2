"""Without the frameworks: `import replan` works, an integration says what to install."""

import subprocess
import sys

import pytest

BLOCK = "import sys; sys.modules['{0}'] = None; "


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_replan_needs_none_of_them():
    blocked = "".join(BLOCK.format(name) for name in ("torch", "lightning", "avalanche"))
    done = run(blocked + "import replan, replan.online, replan.cli, replan.integrations")
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


def test_train_says_what_to_install():
    done = run(BLOCK.format("torch") + "sys.argv[1:] = ['train']; import replan.cli as c; c.main()")
    assert done.returncode == 2
    assert done.stderr == "replan: `replan train` needs PyTorch: pip install 'replan[torch]'\n"
