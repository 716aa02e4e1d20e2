"""Replay policies: which task next, decided while training from nothing but losses."""

from replan.policies._policies import (
    Alternate,
    Decision,
    Fixed,
    FocusThenReplay,
    Follow,
    Log,
    ReplayPolicy,
    checked_losses,
    focus_lengths,
)

__all__ = [
    "Alternate",
    "Decision",
    "Fixed",
    "FocusThenReplay",
    "Follow",
    "Log",
    "ReplayPolicy",
    "checked_losses",
    "focus_lengths",
]
