"""evaluate(problem, protocol) → Trajectory: the exact learning curves of a training protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check, files, memory
from replan._common.check import Floats, Ints
from replan._common.naming import knob_label
from replan.curves import Curves
from replan.dynamics import HasOverlaps, IntegrationError, Pieces, integrate, require
from replan.dynamics._dynamics import with_ends
from replan.dynamics._integrate import MAX_STEPS, RTOL, Status
from replan.problem import Problem
from replan.problem._ends import best_ends
from replan.protocol import Protocol
from replan.transfer import Transfer, transfer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAMPLES = 250  # least number of points of a curve in a picture: the default number of steps


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """Learning curves of one protocol on one problem.

    times: (n,) the edges of the protocol's and the problem's steps. states: (n, …) the dynamics'
    states. losses: (n, L). errors: (n, L) estimated discretisation errors of the losses. substeps:
    (n − 1,) integration steps taken between the times. average_losses, average_errors: (L,) over
    the time covered. ends: (E,) the best values of the model's end knobs, which the losses are
    with. status: "ok", or "diverged" or "inaccurate", where `advice` says when and what
    to try; a diverged trajectory ends before its divergence.
    """

    problem: Problem
    protocol: Protocol
    times: Floats
    states: Floats
    losses: Floats
    errors: Floats
    substeps: Ints
    average_losses: Floats
    average_errors: Floats
    ends: Floats
    rtol: float
    status: Status
    advice: str

    @property
    def weighted_losses(self) -> Floats:
        """The weighted losses (n,)."""
        return self.losses @ np.asarray(self.problem.weights)

    @property
    def loss(self) -> float:
        """The objective: weighted final losses, running costs and penalties for missed targets."""
        self._require_ok()
        return float(self.problem.objective(self.losses[-1], self.average_losses))

    @property
    def targets_met(self) -> bool:
        """Whether every final loss is at most its target."""
        return bool(np.all(self.final_losses <= np.asarray(self.problem.targets)))

    @property
    def final_losses(self) -> Floats:
        """The final losses (L,), in most models one for each task."""
        self._require_ok()
        return self.losses[-1]

    @property
    def error(self) -> float:
        """Estimated discretisation error of `loss`; NaN where it is not known.

        That is where the model's `roll_out` gives the same with half the steps.
        """
        self._require_ok()
        final = float(self.errors[-1] @ self.problem.slopes(self.losses[-1]))
        running = np.asarray(self.problem.running)
        return final + (float(self.average_errors @ running) if running.any() else 0.0)

    @property
    def parts(self) -> dict[str, float]:
        """What `loss` consists of: final losses, running costs, penalties for missed targets."""
        final = float(self.final_losses @ np.asarray(self.problem.weights))
        running = float(self.average_losses @ np.asarray(self.problem.running))
        return {"final": final, "running": running, "targets": self.loss - final - running}

    @cached_property
    def curves(self) -> Curves:
        """The losses as curves of a single run."""
        return Curves(self.times, self.losses[None], names=self.problem.model.loss_names)

    @cached_property
    def transfer(self) -> Transfer | None:
        """Forgetting and transfer of every task, where tasks arrive or depart."""
        self._require_ok()
        return transfer(self.problem, self.times, self.losses)

    @property
    def unpacked(self) -> Any:
        """The states in the model's own form, with time in front."""
        return self.problem.model.unpack(self.states)

    @property
    def overlaps(self) -> Any:
        """The overlaps, with time in front, of a model that has them."""
        return require(self.problem.model, HasOverlaps, "overlaps").overlaps(self.states)

    @property
    def cosines(self) -> Floats:
        """Cosine similarities (n, K, P) of hidden units and teachers, of a model that has them."""
        return require(self.problem.model, HasOverlaps, "cosines").cosines(self.overlaps)

    def losses_at(self, times: ArrayLike) -> Floats:
        """Return the losses (m, L) at any times (m,), integrated there rather than interpolated."""
        wanted = check.array("times", times, ("m",))
        end = self.times[-1]
        wanted[np.abs(wanted - end) <= 1e-9 * end] = end
        if wanted.size and (wanted.min() < 0 or wanted.max() > end):
            raise ValueError(
                f"`times` expects times from 0 to {end:g}, got {check.show(wanted.tolist())}"
            )
        return np.array([self._losses_at(time) for time in wanted]).reshape(
            -1, self.losses.shape[1]
        )

    def _losses_at(self, time: float) -> Floats:
        i = int(np.searchsorted(self.times, time, side="right")) - 1
        if self.times[i] == time:
            return self.losses[i]
        step = self.protocol.step_at([(time + self.times[i]) / 2])
        piece = Pieces(
            self.protocol.shares[step],
            self.problem.knob_rows(self.protocol)[step],
            np.array([time - self.times[i]]),
            self.substeps[i : i + 1],
        )
        return self._losses_of(self.problem.model.roll_out(self.states[i], piece)[-1])

    def _losses_of(self, states: Floats) -> Floats:
        """Return the losses (…, L) at states (…, n)."""
        return self.problem.model.losses(with_ends(states, self.ends))

    @cached_property
    def sampled(self) -> tuple[Floats, Floats]:
        """Times (m,) and losses (m, L) close enough for a smooth curve, the edges among them.

        Long steps are integrated again, cut into parts. Where the model is not available, and where
        it is discrete and its states may be large, these are the edges alone.
        """
        lengths = np.diff(self.times)
        parts = np.ceil(lengths * (_SAMPLES / self.problem.duration) * (1 - 1e-9)).astype(np.int64)
        if self.states.shape[1] == 0 or self.problem.model.discrete or np.all(parts == 1):
            return self.times, self.losses
        first = np.repeat(self.times[:-1], parts)
        within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        times = np.append(first + within * np.repeat(lengths / parts, parts), self.times[-1])
        step = self.protocol.step_at((times[1:] + times[:-1]) / 2)
        pieces = Pieces(
            self.protocol.shares[step],
            self.problem.knob_rows(self.protocol)[step],
            np.diff(times),
            np.repeat(-(-self.substeps // parts), parts),
        )
        states = self.problem.model.roll_out(self.states[0], pieces)
        return times[: len(states)], self._losses_of(states)

    @property
    def best_ends(self) -> dict[str, float]:
        """The values of the model's end knobs with which the objective is smallest, by name."""
        names = [knob.name for knob in self.problem.model.end_knobs]
        return dict(zip(names, self.ends.tolist(), strict=True))

    def _require_ok(self) -> None:
        if self.status != "ok":
            raise IntegrationError(self.advice)

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""
        ok = self.status == "ok"
        return {
            "value": self.loss if ok else None,
            "losses": self.final_losses.tolist() if ok else None,
            "loss_names": list(self.problem.model.loss_names),
            "error": self.error if ok and np.isfinite(self.error) else None,
            "parts": self.parts if ok else None,
            "average_losses": self.average_losses.tolist(),
            **({"transfer": self.transfer.to_dict()} if ok and self.transfer else {}),
            "ends": self.best_ends,
            "status": self.status,
            "advice": self.advice,
            **self.protocol.to_dict(),
            "times": self.times.tolist(),
            "curves": self.losses.tolist(),
            "end": self.problem.model.start_to_dict(self.problem.model.unpack(self.states[-1])),
            "rtol": self.rtol,
            "problem": self.problem.to_dict(),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per time: time, loss_1, … and the weighted loss."""
        import pandas as pd

        header = ["time", *(f"loss_{t + 1}" for t in range(self.losses.shape[1])), "weighted"]
        rows = np.column_stack([self.times, self.losses, self.weighted_losses])
        return pd.DataFrame(rows, columns=header)

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def plot(
        self, path: files.FilePath | None = None, *, axes: Axes | Sequence[Axes] | None = None
    ) -> Figure | None:
        """Draw the losses under the colour bar of the protocol, and every knob that varies.

        Return the figure, and write it if a `path` (.png, .pdf, .svg) is given. With `axes`,
        draw there and return nothing: one for the losses, two for the colour bar and the losses, or
        one more for each knob; `legend()` of the losses' axes names the lines.
        """
        from replan._common import plotting

        knobs = tuple(self.protocol.knobs)
        names = ("colour bar", "losses", *knobs)
        if axes is not None:
            choices = [names[: 2 + count] for count in range(len(knobs) + 1)]
            self._draw(plotting.panels(path, axes, names[1:2], *choices))
            return None
        names = (*names[:2], *self.protocol.varied)
        extra = len(names) - 2
        heights = [1, 11, *[5] * extra]
        with plotting.figure(path, width=6.4, height=3.6 + 1.0 * extra) as figure:
            parts = figure.subplots(len(heights), sharex=True, height_ratios=heights)
            self._draw(dict(zip(names, parts, strict=True)))
            plotting.legend_beside(figure, parts[1])
        return figure

    def _draw(self, panels: dict[str, Axes]) -> None:
        from replan._common import plotting

        if "colour bar" in panels:
            plotting.draw_protocol(panels["colour bar"], self.protocol)
            panels["colour bar"].tick_params(bottom=False, labelbottom=False)
        plotting.draw_losses(panels["losses"], self)
        for knob in self.protocol.knobs:
            if knob in panels:
                plotting.draw_knob(panels[knob], self.protocol, knob)
        list(panels.values())[-1].set_xlabel("training time α")

    def _repr_html_(self) -> str:
        from replan._common import html

        if self.status != "ok":
            return html.block(html.text(str(self)), html.colour_bar(self.protocol))
        return html.block(
            html.text(f"Trajectory: {self._loss_text()}"),
            html.colour_bar(self.protocol),
            html.final_losses(self),
        )

    def __repr__(self) -> str:
        loss = f"loss={self.loss:.6g}" if self.status == "ok" else f"status={self.status!r}"
        return f"Trajectory({loss}, {self.times.size} times to {self.times[-1]:g})"

    def __str__(self) -> str:
        if self.status != "ok":
            return f"Trajectory: {self.status}; {self.advice}"
        protocol = self.protocol.text(self.problem.model.task_names)
        moved = [self.transfer.text] if self.transfer else []
        return "\n".join([f"{self._loss_text()} ({self.losses_text})", *moved, protocol])

    @property
    def losses_text(self) -> str:
        """The final losses by name, and the end knobs that they are with."""
        parts = zip(self.problem.model.loss_names, self.final_losses, strict=True)
        ends = [f"with {knob_label(name)} {x:.4g}" for name, x in self.best_ends.items()]
        return ", ".join([*(f"{name} {x:.6g}" for name, x in parts), *ends])

    def _loss_text(self) -> str:
        error = "unknown" if np.isnan(self.error) else f"{self.error:.1g}"
        return f"loss {self.loss:.6g} ± {error}"


def simpson_weights(lengths: Floats) -> Floats:
    """Return the weights (2n + 1,) of edges and middles in an average over n steps.

    Simpson's rule: an error of order 4 in the step, like the integrator's.
    """
    weights = np.zeros(2 * lengths.size + 1)
    weights[:-1:2] += lengths
    weights[1::2] = 4 * lengths
    weights[2::2] += lengths
    return weights / (6 * lengths.sum())


def _averages(losses: Floats, lengths: Floats) -> tuple[Floats, Floats]:
    """Return averages and their errors (L,) of losses at the middles or quarters of n steps.

    losses: (2n + 1, L), and then the errors are not known (NaN), or (4n + 1, L).
    """
    if lengths.size == 0:
        return losses[0], np.zeros(losses.shape[1])
    if len(losses) == 2 * lengths.size + 1:
        return simpson_weights(lengths) @ losses, np.full(losses.shape[1], np.nan)
    fine = simpson_weights(np.repeat(lengths / 2, 2)) @ losses
    return fine, np.abs(fine - simpson_weights(lengths) @ losses[::2]) / 15


def evaluate(
    problem: Problem,
    protocol: Protocol,
    *,
    rtol: float = RTOL,
    max_steps: int = MAX_STEPS,
    throw: bool = True,
) -> Trajectory:
    """Return the exact learning curves of `protocol` on `problem`.

    **Main arguments**

    - `problem`, `protocol`: with the same number of tasks and the same duration.

    **Other arguments**

    - `rtol`: the relative accuracy of the losses; RK4 steps are halved until it is reached.
    - `max_steps`: how many RK4 steps the finest run may take.
    - `throw`: raise an `IntegrationError` where the curves cannot be computed (if a learning rate
      is too large); with `throw=False`, return what there is, with a status that says so.
    """
    check.instance("problem", problem, Problem, "a Problem")
    check.boolean("throw", throw)
    steps = problem.accept(protocol).split(problem.edges)
    # Averages need the middles of the steps; to know their errors as well, the quarters.
    parts = 4 if problem.averages_count else 2
    size = problem.state.size
    memory.require(
        f"{steps.steps} steps and a state of {size} numbers",
        memory.COPIES * parts * steps.steps * (size + 2 * steps.tasks),
    )
    pieces = Pieces.whole(steps.shares, problem.knob_rows(steps), steps.lengths).cut(parts)
    ends = np.array([knob.default for knob in problem.model.end_knobs])
    run = integrate(problem.model, problem.state, pieces, rtol=rtol, max_steps=max_steps)
    if ends.size and run.status == "ok":
        averaging = np.zeros(len(run.states))
        averaging[:: parts // 2] = simpson_weights(steps.lengths)
        ends = best_ends(problem, run.states, averaging if problem.averages_count else None)
        again = pieces._replace(substeps=run.substeps // 2)
        run = integrate(
            problem.model, problem.state, again, ends=ends, rtol=rtol, max_steps=max_steps
        )
    if throw and run.status != "ok":
        raise IntegrationError(run.advice)
    last = (len(run.states) - 1) // parts + 1
    whole = parts * (last - 1)
    averages, average_errors = _averages(run.losses[: whole + 1], steps.lengths[: last - 1])
    return Trajectory(
        problem,
        protocol,
        times=steps.edges[:last],
        states=run.states[: whole + 1 : parts],
        losses=run.losses[: whole + 1 : parts],
        errors=run.errors[: whole + 1 : parts],
        substeps=run.substeps[:whole].reshape(-1, parts).sum(axis=1),
        average_losses=averages,
        average_errors=average_errors,
        ends=ends,
        rtol=rtol,
        status=run.status,
        advice=run.advice,
    )
