"""States of policies and samplers: JSON types that say what they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from replan import check
from replan.errors import ArgumentError


def make_state(owner: object, arguments: Mapping[str, Any], **counters: Any) -> dict[str, Any]:
    """Return a state: the class of its owner, the arguments it was made with, what changes."""
    return _as_json({"class": type(owner).__name__, "arguments": arguments} | counters)


def check_state(state: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state; refuse one of another class, arguments or entries than `own`."""
    if not isinstance(state, Mapping) or state.get("class") != own["class"]:
        raise ArgumentError("state", f"the state of a {own['class']}", check.show(state))
    if state.keys() != own.keys():
        raise ArgumentError("state", f"a dict of {', '.join(own)}", ", ".join(map(str, state)))
    saved = _as_json(state)
    for name, value in own["arguments"].items():
        there = saved["arguments"].get(name)
        if there != value:
            raise ArgumentError(f"state.arguments.{name}", check.show(value), check.show(there))
    return saved


def _as_json(content: Any) -> Any:
    """Return a copy of JSON types as a file would bring it back."""
    return json.loads(json.dumps(content))
