import matplotlib
import pytest

from reproduction.__main__ import load
from reproduction.drawing import STYLE


def run(function, cases):
    return [function(**case) for case in cases]


@pytest.fixture
def made():
    """Return made(name, **settings): the tables of a figure that was computed, drawn and judged."""

    def make(name, **settings):
        module = load(name)
        assert settings.keys() <= module.FULL.keys() == module.QUICK.keys()
        tables = module.compute(run, **module.QUICK | settings)
        with matplotlib.rc_context(STYLE):
            module.draw(tables).canvas.draw()
        claims = module.claims(tables)
        assert claims and all(claim.held and claim.numbers and claim.verdict for claim in claims)
        return tables

    return make
