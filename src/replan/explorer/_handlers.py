"""Handlers of widgets: what they do is done with the document's lock.

Panel calls handlers without it while other events are under way, and figures cannot change then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

Deliver = Callable[[Callable[[], None]], object]
"""Calls a function in the thread of the page, with the document's lock."""


def button(label: str, act: Callable[[], None], deliver: Deliver, name: str, **look: Any) -> Any:
    """Return a button for an action; its name is its class in CSS."""
    found = pn.widgets.Button(name=label, css_classes=[name], **look)
    found.on_click(lambda _: deliver(act))
    return found


def on_value(widget: Any, act: Callable[[], None], deliver: Deliver) -> None:
    """Act whenever the value of a widget has changed."""
    widget.param.watch(lambda _: deliver(act), "value")
