"""The linear activation g(z) = z; its moments are the covariances themselves."""

from __future__ import annotations

from replan.core.compiled import inlined


@inlined
def activation(field: float) -> float:
    """g(z)."""
    return field


@inlined
def slope(field: float) -> float:
    """g′(z)."""
    return 1.0
