"""The minimum of a limited-memory BFGS model over the relaxed controls, by spectral steps.

Birgin, Martínez & Raydan, "Nonmonotone spectral projected gradient methods on convex sets" (2000);
as the inner method of projected quasi-Newton: Schmidt, van den Berg, Friedlander & Murphy (2009).
"""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.core import library
from replan.core.projection import Domain, check_size


def model_minimum(x: Floats, gradient: Floats, pairs: Floats, domain: Domain) -> Floats:
    """Return about the minimum (n,) over the domain of a quadratic model around x (n,).

    gradient: (n,) at x. pairs: (p, 2, n) moves of x, and how the gradient changed with them.
    """
    check_size("x", x, domain)
    scale, sides, inverse = _hessian(pairs)
    x, slope = x.copy(), gradient.copy()
    work = np.empty(3 * x.size + 2 * len(sides) + domain.room)
    paced = domain.paces["descend"]
    paced.run(library.DESCEND, 1, domain, scale, sides, inverse, x, slope, work)
    return x


def _hessian(pairs: Floats) -> tuple[float, Floats, Floats]:
    """Return the parts of the Hessian scale × 1 − sidesᵀ inverse sides; sides: (2 × pairs, n).

    Limited-memory BFGS in its compact form, of Byrd, Nocedal & Schnabel (1994).
    """
    count = len(pairs)
    sides = np.concatenate([pairs[:, 0], pairs[:, 1]])
    products = sides[:count] @ sides.T
    scale = float(products[-1, -1])
    sides[:count] *= scale
    middle = np.zeros((2 * count, 2 * count))
    middle[:count, :count] = scale * products[:, :count]
    lower = products[:, count:] * np.tri(count, k=-1)
    middle[:count, count:], middle[count:, :count] = lower, lower.T
    np.fill_diagonal(middle[count:, count:], -products[:, count:].diagonal())
    return scale, sides, np.asarray(np.linalg.inv(middle), np.float64)
