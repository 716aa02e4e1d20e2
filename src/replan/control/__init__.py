"""solve(problem) → Plan: relax, round, polish, certify."""

from replan.control.plan import Certificate, Plan
from replan.control.solve import METHODS, solve

__all__ = ["METHODS", "Certificate", "Plan", "solve"]
