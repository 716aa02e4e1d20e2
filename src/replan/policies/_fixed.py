"""The same shares at every step."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.policies._policy import OpenLoop


@final
class Fixed(OpenLoop):
    """The same shares (T,) at every step: what most replay libraries do.

    Examples:
        >>> replan.policies.Fixed([0.25, 0.75]).next_tasks(8)
        array([1, 0, 1, 1, 1, 0, 1, 1])
    """

    def __init__(self, shares: ArrayLike, **settings: Any) -> None:
        self._shares = check.simplex_rows("shares", shares, ("T",))
        super().__init__(self._shares.size, **settings)
        self.arguments |= {"shares": self._shares.tolist()}

    def _ahead(self, count: int) -> tuple[Floats, None]:
        return np.tile(self._shares, (count, 1)), None
