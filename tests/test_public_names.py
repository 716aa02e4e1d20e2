"""`import replan`: what it offers, and what it does not load."""

import subprocess
import sys

import pytest

import replan


def test_every_public_name_is_there():
    assert set(replan.__all__) <= set(replan._HOMES)
    for name in set(replan._HOMES) - {"AutoModel"}:
        assert getattr(replan, name) is not None
    assert dir(replan) == replan.__all__
    assert replan.strategies.interleaved is not None
    with pytest.raises(AttributeError, match="module 'replan' has no attribute 'sovle'"):
        replan.sovle  # noqa: B018


def test_using_replan_is_light():
    """Pictures and JAX are loaded when something needs them, compiled code when a name does."""
    program = (
        "import sys; import replan; replan.Problem, replan.TeacherStudent, replan.evaluate; "
        "light = [name for name in ('numba', 'scipy') if name in sys.modules]; "
        "from replan import *; "
        "print(light + [name for name in ('matplotlib', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_auto_dynamics_is_there_where_jax_is():
    pytest.importorskip("jax")
    from replan.models.auto import AutoModel

    assert replan.AutoModel is AutoModel


def test_without_jax_auto_dynamics_says_what_to_install():
    program = "import sys; sys.modules['jax'] = None; import replan; "
    program += "replan.AutoModel(None, None, tasks=1, like=0.0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: AutoModel needs JAX: pip install 'replan[jax]'"
