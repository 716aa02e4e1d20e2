"""Results as HTML for notebooks: small, self-contained, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from replan._common.plotting import task_colour
from replan.check import Floats

if TYPE_CHECKING:
    from replan.protocol import Protocol
    from replan.trajectory import Trajectory

_COLUMNS = 300  # most columns of a colour bar: about as many as can be told apart
_CELL = 'style="text-align:left;white-space:nowrap;padding:2px 14px 2px 0"'


class Html(str):
    """Text that is HTML already; all other text is escaped."""


def block(*parts: Html) -> Html:
    """Return parts as one piece, one below the other."""
    return Html(f'<div style="line-height:1.5;overflow-x:auto">{"".join(parts)}</div>')


def side_by_side(*parts: Html) -> Html:
    """Return parts side by side, where there is room."""
    return Html(
        f'<div style="display:flex;flex-wrap:wrap;gap:0 32px;align-items:flex-start">'
        f"{''.join(parts)}</div>"
    )


def text(words: str) -> Html:
    """Return a paragraph with its line breaks kept; nothing if there are no words."""
    return Html(f'<div style="white-space:pre-wrap">{escape(words)}</div>' if words else "")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table; numbers are shown with four digits."""
    head = "".join(f'<th scope="col" {_CELL}>{escape(name)}</th>' for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td {_CELL}>{_cell(value)}</td>' for value in row)}</tr>" for row in rows
    )
    return Html(
        '<table style="font:inherit;color:inherit;border-collapse:collapse;margin:6px 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, Html):
        return value
    if value is None:
        return "–"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def final_losses(trajectory: Trajectory) -> Html:
    """Return a table of the tasks: weight, final loss, and targets and transfer where any."""
    problem = trajectory.problem
    targets = problem.objective.targets
    header = ["task", "weight", "final loss"]
    columns = [range(1, targets.size + 1), problem.objective.weights, trajectory.final_losses]
    if np.any(targets < np.inf):
        header.append("target")
        columns.append([x if x < np.inf else None for x in targets])
    if trajectory.transfer:
        found = trajectory.transfer.to_dict()
        header += found
        columns += found.values()
    return table(header, zip(*columns, strict=True))


def legend(names: Sequence[str]) -> Html:
    """Return the names of the tasks, or what is said about them, each beside its colour."""
    entries = "".join(
        f'<span style="margin-right:16px;white-space:nowrap"><svg width="10" height="10" '
        f'aria-hidden="true"><rect width="10" height="10" fill="{task_colour(t)}"/></svg> '
        f"{escape(name)}</span>"
        for t, name in enumerate(names)
    )
    return Html(f"<div>{entries}</div>")


def colour_bar(protocol: Protocol) -> Html:
    """Return the colour bar of a protocol over its time axis, and the share of every task."""
    named = legend([f"task {t + 1} {x:.1%}" for t, x in enumerate(protocol.mean_shares)])
    averaged = "" if _is_exact(protocol) else f", averaged over {_COLUMNS} equal parts"
    return Html(
        f'<div style="max-width:640px;margin:6px 0">{_bar(protocol, 22)}'
        '<div style="display:flex;justify-content:space-between;font-size:85%">'
        f"<span>0</span><span>training time α{averaged}</span>"
        f"<span>{protocol.duration:g}</span></div>{named}</div>"
    )


def thin_bar(protocol: Protocol) -> Html:
    """Return the colour bar of a protocol for a row of a table."""
    return Html(f'<div style="width:200px">{_bar(protocol, 12)}</div>')


def _bar(protocol: Protocol, height: int) -> str:
    """Return the shares, stacked from the bottom, as a drawing with one path per task."""
    edges, shares = _columns(protocol)
    x = 1000 * edges / protocol.duration
    tops = 100 * (1 - np.cumsum(shares, axis=1))
    paths = []
    for t in range(protocol.tasks):
        boxes = "".join(
            f"M{left:.6g} {top:.4g}H{right:.6g}v{100 * share:.4g}H{left:.6g}z"
            for left, right, top, share in zip(x, x[1:], tops[:, t], shares[:, t], strict=False)
            if share > 1e-6  # else a rounding error, or too thin to be seen
        )
        paths.append(f'<path fill="{task_colour(t)}" d="{boxes}"/>')
    parts = ", ".join(f"task {t + 1} {share:.1%}" for t, share in enumerate(protocol.mean_shares))
    title = f"Shares of the tasks over time; of all training, {parts}"
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 1000 100" preserveAspectRatio="none" '
        f'width="100%" height="{height}" shape-rendering="crispEdges" style="display:block">'
        f"<title>{title}</title>{''.join(paths)}</svg>"
    )


def _changes(protocol: Protocol) -> Any:
    """Return the first step of every run of equal shares."""
    changed = np.any(np.diff(protocol.shares, axis=0) != 0, axis=1)
    return np.concatenate([[0], np.flatnonzero(changed) + 1])


def _is_exact(protocol: Protocol) -> bool:
    return _changes(protocol).size <= _COLUMNS


def _columns(protocol: Protocol) -> tuple[Floats, Floats]:
    """Return edges (n + 1,) and shares (n, T): runs of equal shares, or averages over equal parts.

    Averages keep every task's share of the whole where the runs are too many to be seen.
    """
    first = _changes(protocol)
    if _is_exact(protocol):
        return np.append(protocol.edges[first], protocol.duration), protocol.shares[first]
    edges = np.linspace(0.0, protocol.duration, _COLUMNS + 1)
    trained = np.cumsum(protocol.shares * protocol.lengths[:, None], axis=0)
    sums = [np.interp(edges, protocol.edges, [0.0, *column]) for column in trained.T]
    return edges, np.diff(sums, axis=1).T / (protocol.duration / _COLUMNS)
