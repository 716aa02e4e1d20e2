"""Trajectory: the exact learning curves of a training protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files
from replan.check import Floats, Ints
from replan.curves import Curves
from replan.errors import ArgumentError, IntegrationError
from replan.models import Schedule
from replan.models.integrator import Status
from replan.problem import Problem
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
    the time covered. goal_loss, goal_error: what the problem's goal makes of the losses. status: "ok", or
    "diverged" or "inaccurate", where `advice` says when and what to try; a diverged trajectory ends
    before its divergence. members: those of the members of an ensemble, for which everything else
    is a weighted mean over them, and `states` are those of all of them.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> run = replan.evaluate(problem, replan.strategies.interleaved(problem))
        >>> print(run.final_losses.round(3), run.losses_at([1.0, 2.0]).shape)
        [0.001 0.014] (2, 2)
        >>> run.to_frame().tail(1).round(3)
            time  loss_1  loss_2  weighted
        50  20.0   0.001   0.014     0.008
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
    goal_loss: float
    goal_error: float
    rtol: float
    status: Status
    advice: str
    members: tuple[Trajectory, ...] = ()

    @property
    def weighted_losses(self) -> Floats:
        """What the goal makes of the losses at each time (n,), by default the weighted losses."""
        each = [one.losses[: self.times.size] for one in self.members or (self,)]
        return self._weighted(self.times, each)

    def weighted_at(self, times: ArrayLike) -> Floats:
        """Return what the goal, and of an ensemble the risk, makes of the losses at times (m,)."""
        wanted = check.array("times", times, ("m",))
        return self._weighted(wanted, [one.losses_at(wanted) for one in self.members or (self,)])

    def _weighted(self, times: Floats, each: Sequence[Floats]) -> Floats:
        """Return the same (m,) of the losses (m, L) of all members."""
        found = [self.problem.objective.curve(times, losses) for losses in each]
        return self.problem.risk.of(np.stack(found))

    @property
    def member_losses(self) -> Floats:
        """The objective (M,) of each member; of a problem that is no ensemble, its own."""
        return np.array([one.loss for one in self.members or (self,)])

    def _counted(self, amounts: Sequence[float]) -> float:
        """Return what amounts (M,) of the members come to in the objective: the worst may count."""
        return float(self.problem.risk.mixture(self.member_losses) @ amounts)

    @property
    def loss(self) -> float:
        """The objective: the goal, running costs and penalties for missed targets."""
        return sum(self.parts.values())

    @property
    def targets_met(self) -> bool:
        """Whether every final loss, of every member, is at most its target."""
        return bool(np.all(self.largest_losses <= self.problem.objective.targets))

    @property
    def largest_losses(self) -> Floats:
        """The final losses (L,), the largest of all members' of an ensemble."""
        self._require_ok()
        return np.max([one.losses[-1] for one in self.members or (self,)], axis=0)

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
        if self.members:
            return self._counted([one.error for one in self.members])
        targets = float(self.errors[-1] @ self.problem.objective.penalties(self.losses[-1])[1])
        running = self.problem.objective.running
        average = float(self.average_errors @ running) if running.any() else 0.0
        return self.goal_error + average + targets

    @property
    def parts(self) -> dict[str, float]:
        """What `loss` consists of: the goal by its name, running costs, penalties for targets."""
        if self.members:
            self._require_ok()
            each = [one.parts for one in self.members]
            return {name: self._counted([parts[name] for parts in each]) for name in each[0]}
        penalty = float(self.problem.objective.penalties(self.final_losses)[0])
        running = float(self.average_losses @ self.problem.objective.running)
        return {self.problem.objective.goal: self.goal_loss, "running": running, "targets": penalty}

    @cached_property
    def curves(self) -> Curves:
        """The losses as curves of a single run, or of one for each member of an ensemble."""
        each = [one.losses[: self.times.size] for one in self.members or (self,)]
        return Curves(self.times, np.stack(each), names=self.problem.model.loss_names)

    @cached_property
    def transfer(self) -> Transfer | None:
        """Forgetting and transfer of every task, where tasks arrive or depart."""
        self._require_ok()
        return transfer(self.problem, self.times, self.losses)

    @property
    def unpacked(self) -> Any:
        """The states in the model's own form, with time in front."""
        return self.problem.model.unpack(self.states)

    def losses_at(self, times: ArrayLike) -> Floats:
        """Return the losses (m, L) at any times (m,), integrated there rather than interpolated."""
        wanted = check.array("times", times, ("m",))
        end = self.times[-1]
        wanted[np.abs(wanted - end) <= 1e-9 * end] = end
        if wanted.size and (wanted.min() < 0 or wanted.max() > end):
            raise ArgumentError("times", f"times from 0 to {end:g}", check.show(wanted.tolist()))
        return np.array([self._losses_at(time) for time in wanted]).reshape(
            -1, self.losses.shape[1]
        )

    def _losses_at(self, time: float) -> Floats:
        i = int(np.searchsorted(self.times, time, side="right")) - 1
        if self.times[i] == time:
            return self.losses[i]
        step = self.protocol.step_at([(time + self.times[i]) / 2])
        piece = Schedule(
            self.protocol.shares[step],
            self.problem.knob_rows(self.protocol)[step],
            np.array([time - self.times[i]]),
            self.substeps[i : i + 1],
        )
        return self._losses_of(self.problem.model.roll_out(self.states[i], piece)[-1])

    def _losses_of(self, states: Floats) -> Floats:
        """Return the losses (…, L) at states (…, n)."""
        return self.problem.model.losses(states)

    @cached_property
    def sampled(self) -> tuple[Floats, Floats]:
        """Times (m,) and losses (m, L) close enough for a smooth curve, the edges among them.

        Long steps are integrated again, cut into parts. Where the model is not available,
        these are the edges alone.
        """
        if self.members:
            found = [one.sampled for one in self.members]
            rows = min(times.size for times, _ in found)
            each = np.stack([losses[:rows] for _, losses in found])
            return found[0][0][:rows], np.tensordot(self.problem.risk.weights, each, axes=1)
        lengths = np.diff(self.times)
        parts = np.ceil(lengths * (_SAMPLES / self.problem.duration) * (1 - 1e-9)).astype(np.int64)
        if self.states.shape[1] == 0 or np.all(parts == 1):
            return self.times, self.losses
        first = np.repeat(self.times[:-1], parts)
        within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        times = np.append(first + within * np.repeat(lengths / parts, parts), self.times[-1])
        step = self.protocol.step_at((times[1:] + times[:-1]) / 2)
        pieces = Schedule(
            self.protocol.shares[step],
            self.problem.knob_rows(self.protocol)[step],
            np.diff(times),
            np.repeat(-(-self.substeps // parts), parts),
        )
        states = self.problem.model.roll_out(self.states[0], pieces)
        return times[: len(states)], self._losses_of(states)

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
            **({"members": self._members_to_dict()} if self.members else {}),
            "average_losses": self.average_losses.tolist(),
            **({"transfer": self.transfer.to_dict()} if ok and self.transfer else {}),
            "status": self.status,
            "advice": self.advice,
            **self.protocol.to_dict(),
            "times": self.times.tolist(),
            "curves": self.losses.tolist(),
            "end": self.problem.model.start_to_dict(self.problem.model.unpack(self.states[-1])),
            "rtol": self.rtol,
            "problem": self.problem.to_dict(),
        }

    def _members_to_dict(self) -> list[dict[str, Any]]:
        names = self.problem.names
        return [
            {
                "name": name,
                "weight": weight,
                "value": one.loss if one.status == "ok" else None,
                "losses": one.final_losses.tolist() if one.status == "ok" else None,
                "status": one.status,
                "advice": one.advice,
            }
            for name, weight, one in zip(
                names, self.problem.risk.weights.tolist(), self.members, strict=True
            )
        ]

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
        first = f"{self._loss_text()} ({self.losses_text})"
        return "\n".join([first, *self.members_text, *moved, protocol])

    @property
    def members_text(self) -> list[str]:
        """In a line, how the objectives of an ensemble's members are spread; else none."""
        if not self.members:
            return []
        values, names = self.member_losses, self.problem.names
        best, worst = int(np.argmin(values)), int(np.argmax(values))
        median = self.problem.risk.quantile(values, 0.5)
        return [
            f"members from {values[best]:.4g} ({names[best]}) to {values[worst]:.4g} "
            f"({names[worst]}), median {median:.4g}"
        ]

    @property
    def losses_text(self) -> str:
        """The final losses by name."""
        parts = zip(self.problem.model.loss_names, self.final_losses, strict=True)
        first = "mean over members: " * bool(self.members)
        first += "at the end: " * self.problem.objective.throughout
        return first + ", ".join(f"{name} {x:.6g}" for name, x in parts)

    @property
    def name(self) -> str:
        """What people call the objective: its goal, if that is not the weighted final losses.

        Of an ensemble, its risk too.
        """
        words = [self.problem.objective.words] * (self.problem.objective.goal != "final")
        words += [self.problem.risk.words] * bool(self.members)
        return f"loss ({', '.join(words)})" if words else "loss"

    @property
    def label(self) -> str:
        """What a picture calls the objective along the way."""
        words = self.problem.objective.words
        return f"{words},\n{self.problem.risk.words}" if self.members else words

    def _loss_text(self) -> str:
        error = "unknown" if np.isnan(self.error) else f"{self.error:.1g}"
        return f"{self.name} {self.loss:.6g} ± {error}"
