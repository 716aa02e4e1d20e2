"""Policies decide in a running training loop which task comes next.

A policy is told losses, if it needs any, and answers with tasks. It needs no framework; the
adapters are separate modules: `replan.replay.torch`, `.lightning`, `.transformers` and
`.avalanche`. `tune` searches for the share, rate and decay of any training.
"""

from typing import TYPE_CHECKING

from replan.replay._policies import FixedReplay, FocusThenReplay, FollowProtocol
from replan.replay._policy import Policy

if TYPE_CHECKING:
    from replan.replay.tuning import tune

__all__ = ["FixedReplay", "FocusThenReplay", "FollowProtocol", "Policy", "tune"]

if not TYPE_CHECKING:  # a type checker would take any name at all to be in the module

    def __getattr__(name):
        if name != "tune":
            raise AttributeError(f"module 'replan.replay' has no attribute {name!r}")
        from replan.replay.tuning import tune  # slow to import

        globals()["tune"] = tune
        return tune
