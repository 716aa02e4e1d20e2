"""Policies decide in a running training loop which task comes next.

A policy is told losses, if it needs any, and answers with tasks. It needs no framework; the
adapters are separate modules: `replan.replay.torch`, `.lightning`, `.transformers` and
`.avalanche`.
"""

from replan.replay._policies import FixedReplay, FocusThenReplay, FollowProtocol
from replan.replay._policy import Policy

__all__ = ["FixedReplay", "FocusThenReplay", "FollowProtocol", "Policy"]
