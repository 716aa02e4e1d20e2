"""Protocol: how one trains."""

from replan.protocol._protocol import Protocol

__all__ = ["Protocol"]
