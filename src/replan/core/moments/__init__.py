"""Gaussian moments by activation: one module each, `erf`, `relu` and `linear`.

Those of erf are here too. Needs numba: models import this where they are compiled.
"""

from replan.core.moments.erf import (
    TWO_OVER_PI,
    arcsine,
    i2,
    i3,
    i4,
    norm,
    pull_tilt,
    tilt,
    tilted,
)

__all__ = ["TWO_OVER_PI", "arcsine", "i2", "i3", "i4", "norm", "pull_tilt", "tilt", "tilted"]
