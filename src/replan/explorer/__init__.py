"""The explorer: the whole theory on a page in the browser; needs the extra `explore`."""

from replan.explorer._serve import serve
from replan.explorer._state import State

__all__ = ["State", "serve"]
