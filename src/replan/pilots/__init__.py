"""From logged trainings to a schedule: pilots, the law fitted to them, and what it recommends.

All examples of this package use the same pilots, made by a known law:

    >>> import pandas as pd
    >>> law = replan.models.RateLaw([[2.4, 1.0, 0.45, 0.12, 60.0, 0.5, 0.6]], 1e-3, 400.0)
    >>> steps = np.linspace(0, 10_000, 101)
    >>> shapes = {"constant": steps > 0, "wsd": (steps > 0) * np.minimum(1, 5 - steps / 2000)}
    >>> table = pd.concat([
    ...     pd.DataFrame({"run": name, "step": steps, "lr": 1e-3 * shape,
    ...                   "loss": law.curve(steps, 1e-3 * shape)})
    ...     for name, shape in shapes.items()
    ... ])
"""

from replan.pilots.advice import advise
from replan.pilots.fitted import Fit, fit
from replan.pilots.runs import Pilots
from replan.pilots.share_fit import ShareFit

__all__ = ["Fit", "Pilots", "ShareFit", "advise", "fit"]
