"""The command line and the Python that reproduce what is on a page, and its words."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np

from replan.explorer._state import State
from replan.protocol import Protocol

_SAME = 1e-6  # losses that differ by less, relatively, are the same
_FILE, _MINE = "problem.toml", "mine.json"


def merged(protocol: Protocol) -> Protocol:
    """Return the same protocol with equal neighbouring steps in one."""
    rows = np.column_stack([protocol.shares, *protocol.knobs.values()])
    first = np.append(True, np.any(np.diff(rows, axis=0) != 0, axis=1))
    steps = np.flatnonzero(first)
    return protocol.select(steps, np.append(protocol.edges[steps], protocol.duration))


def command_line(state: State) -> str:
    """Return shell commands that write the problem file and compute what is on the page."""
    compare = " ".join(f"--strategy {shlex.quote(name)}" for name in state.shown)
    lines = [_heredoc(_FILE, state.text)]
    if state.shown:
        lines.append(f"replan compare {_FILE} {compare}")
    if state.drawing is None:
        return "\n".join([*lines, f"replan solve {_FILE} --plot plan.png"])
    content = json.dumps(_content(merged(state.own.protocol(state.problem))))
    return "\n".join(
        [
            *lines,
            _heredoc(_MINE, content + "\n"),
            f"replan evaluate {_FILE} --protocol {_MINE}",
            f"replan solve {_FILE} --protocol {_MINE} --plot plan.png",
        ]
    )


def python(state: State) -> str:
    """Return a Python program that computes what is on the page."""
    lines = [
        "import tomllib",
        "",
        "import replan",
        "",
        f"problem = replan.Problem.from_dict(tomllib.loads({_literal(state.text)}))",
    ]
    if state.shown:
        lines.append(f"print(replan.compare(problem, strategies={json.dumps(list(state.shown))}))")
    start = ""
    if state.drawing is not None:
        content = _content(merged(state.own.protocol(state.problem)))
        lines += [
            f"mine = replan.Protocol.from_dict({content!r})",
            "print(replan.evaluate(problem, mine))",
        ]
        start = ", start=mine"
    lines += [f"plan = replan.solve(problem{start})", "print(plan)", 'plan.plot("plan.png")']
    return "\n".join(lines) + "\n"


def ahead(own: float, best: float) -> str:
    """Return how far the optimum is ahead of the user's own loss, in words."""
    if best <= 0 or own <= 0:
        return f"the optimum is ahead by {own - best:.4g}"
    if abs(own / best - 1) < _SAME:
        return "yours is as good"
    if own < best:
        return (
            f"yours is better by {1 - own / best:.1%}: tick what you changed, and the optimum may "
            "change it too"
        )
    return f"the optimum is ahead by {1 - best / own:.1%} of yours ({own / best:.3g} times lower)"


def _heredoc(name: str, text: str) -> str:
    """Return the shell command that writes a text to a file."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return f"cat > {name} <<'{end}'\n{text}{end}"


def _literal(text: str) -> str:
    """Return a text as Python spells it, over several lines if that is possible."""
    plain = '"""' not in text and "\\" not in text
    return f'"""\n{text}"""' if plain else repr(text)


def _content(protocol: Protocol) -> dict[str, Any]:
    found = protocol.to_dict()
    return {key: found[key] for key in ("duration", "edges", "shares", "knobs")}
