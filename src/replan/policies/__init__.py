"""Policies: which task next, decided in a running training loop from nothing but losses."""

from replan.policies._alternate import Alternate
from replan.policies._fixed import Fixed
from replan.policies._fixed_replay import FixedReplay
from replan.policies._focus_then_replay import FocusThenReplay
from replan.policies._follow import Follow
from replan.policies._policy import Decision, Log, OpenLoop, Policy
from replan.policies._rules import RULES, Rule, Span

__all__ = [
    "RULES",
    "Alternate",
    "Decision",
    "Fixed",
    "FixedReplay",
    "FocusThenReplay",
    "Follow",
    "Log",
    "OpenLoop",
    "Policy",
    "Rule",
    "Span",
]
