"""solve(problem) → Plan: relax, round, polish, certify."""

from replan.control._solve import METHODS, solve
from replan.control.plan import Certificate, Plan

__all__ = ["METHODS", "Certificate", "Plan", "solve"]
