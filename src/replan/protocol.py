"""Protocol: a piecewise-constant share of every task and value of every knob; its samples."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from replan import check, files, report
from replan.check import Bools, Floats, Ints
from replan.errors import ArgumentError, in_file
from replan.results import Result

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("spread", "random")
_SAME = 1e-9  # times closer than this fraction of the duration count as one
_UNTRAINED = 1e-6  # what a knob of a task that has no share counts for in `stages`


class Protocol(Result):
    """How to train: a share of every task and a value of every knob, constant on each step.

    - `shares`: (steps, T), rows that sum to 1; a one-hot row trains on one task.
    - `duration`: the total time in units of samples per input dimension, in equal steps.
    - Any knob by its name, such as `lr`: a number, (steps,), or (steps, T) for one value per task.
      A problem gives its own values to the knobs that a protocol does not set.
    - `edges`: (steps + 1,) increasing times from 0, instead of `duration`, for unequal steps.

    `plot` draws the colour bar: one colour per task, stacked where shares are mixed.

    Examples:
        >>> protocol = replan.Protocol.from_segments([(7.0, 1), (18.0, [0.5, 0.5])], tasks=2)
        >>> print(protocol)
        Protocol: 25 units in 2 steps, task 1 36.0%, task 2 64.0%
                 0 to 7        task 2
                 7 to 25       0.5 task 1 + 0.5 task 2
        >>> protocol.refine(25).round().sequence[3:12]  # one task per step
        array([1, 1, 1, 1, 1, 1, 1, 1, 1])
        >>> print(protocol.refine(250).round().stages(2)[-1])  # the nearest two constant stages
        Protocol: 25 units in 2 steps, task 1 36.0%, task 2 64.0%
                 0 to 7        task 2
                 7 to 25       0.5 task 1 + 0.5 task 2
    """

    def __init__(
        self,
        shares: ArrayLike,
        duration: float | None = None,
        *,
        edges: ArrayLike | None = None,
        **knobs: Any,
    ) -> None:
        self.shares = check.simplex_rows("shares", shares, ("steps", "T"))
        steps, tasks = self.shares.shape
        if steps == 0 or tasks == 0:
            raise ArgumentError("shares", "at least one step and task", f"{steps} and {tasks}")
        if (duration is None) == (edges is None):
            raise ArgumentError(
                "duration",
                "given where `edges` are not, and only there",
                f"{check.show(duration)}, with edges {check.show(edges)}",
            )
        if edges is None:
            end = check.number("duration", duration, above=0)
            self.edges: Floats = np.linspace(0.0, end, steps + 1)
        else:
            self.edges = check.array("edges", edges, (steps + 1,))
            if self.edges[0] != 0.0 or np.any(np.diff(self.edges) <= 0):
                raise ArgumentError("edges", "increasing times from 0", check.show(edges))
            check.number("edges", self.duration)
        self.knobs: dict[str, Any] = _knobs(knobs, steps, tasks)  # arrays, passed on by name

    @classmethod
    def from_sequence(
        cls,
        sequence: Sequence[int] | Ints,
        tasks: int,
        duration: float,
        **knobs: Any,
    ) -> Protocol:
        """Return the protocol that trains on one task (from 0) per step, in equal steps."""
        tasks = check.integer("tasks", tasks, at_least=1)
        chosen = check.task_list("sequence", sequence, tasks)
        if chosen.size == 0:
            raise ArgumentError("sequence", "at least one step", "none")
        return cls(np.eye(tasks)[chosen], duration, **knobs)

    @classmethod
    def from_segments(
        cls,
        segments: Sequence[tuple[float, int | Sequence[float]]],
        tasks: int,
        **knobs: Any,
    ) -> Protocol:
        """Return the protocol made of (length, task or shares) segments.

        "Task 2 for 7, then half and half for 18" is `[(7.0, 1), (18.0, [0.5, 0.5])]`: tasks count
        from 0. `knobs` may hold a value for each segment.
        """
        tasks = check.integer("tasks", tasks, at_least=1)
        pairs = check.items("segments", segments, "(length, task or shares)")
        if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
            raise ArgumentError("segments", "pairs (length, task or shares)", check.show(segments))
        if not pairs:
            raise ArgumentError("segments", "at least one", "none")
        lengths = [check.number("segments", length, above=0) for length, _ in pairs]
        rows = [
            check.simplex_rows("segments", what, (tasks,))
            if isinstance(what, Sequence | np.ndarray)
            else np.eye(tasks)[check.task("segments", what, tasks)]
            for _, what in pairs
        ]
        edges = np.concatenate([[0.0], np.cumsum(lengths)])
        return cls(rows, edges=edges, **knobs)

    # Properties

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.shares)

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return int(self.shares.shape[1])

    @property
    def duration(self) -> float:
        """Total time."""
        return float(self.edges[-1])

    @property
    def lengths(self) -> Floats:
        """Length of every step (steps,)."""
        return np.diff(self.edges)

    @property
    def lr(self) -> Floats:
        """The learning rate (steps,), or (steps, T) where tasks have their own."""
        return self._knob("lr")

    def _knob(self, name: str) -> Floats:
        if name not in self.knobs:
            known = ", ".join(self.knobs) or "no knobs"
            raise ArgumentError("knob", f"one that the protocol sets ({known})", check.show(name))
        return self.knobs[name]

    @property
    def varied(self) -> tuple[str, ...]:
        """The knobs that do not keep one value throughout."""
        return tuple(name for name, values in self.knobs.items() if np.ptp(values) > 0)

    def by_task(self, knob: str) -> Floats:
        """Return the values of a knob for every task (steps, T)."""
        values = self._knob(knob)
        values = values if values.ndim == 2 else values[:, None]
        return np.array(np.broadcast_to(values, self.shares.shape))

    @property
    def mean_shares(self) -> Floats:
        """Share of every task in the whole training (T,)."""
        return self.lengths @ self.shares / self.duration

    @property
    def is_discrete(self) -> bool:
        """Whether every step trains on one task."""
        return bool(np.all(self.shares.max(axis=1) == 1.0))

    @property
    def sequence(self) -> Ints:
        """The task of every step (steps,), from 0; only if every step trains on one task."""
        if not self.is_discrete:
            raise ArgumentError(
                "sequence", "a protocol with one task per step", "mixed shares: call `round` first"
            )
        return np.argmax(self.shares, axis=1)

    def step_at(self, times: ArrayLike) -> Ints:
        """Return the index of the step in force at each time; an edge belongs to the next step."""
        wanted = check.array("times", times)
        index = np.searchsorted(self.edges, wanted, side="right") - 1
        return np.clip(index, 0, self.steps - 1)

    def focus_length(self, task: int) -> float:
        """Return for how long the protocol opens with this task (from 0) alone."""
        others = np.flatnonzero(self.shares[:, check.task("task", task, self.tasks)] < 1.0)
        return float(self.edges[others[0]]) if others.size else self.duration

    # New protocols

    def then(self, other: Protocol) -> Protocol:
        """Return this protocol followed by another."""
        if not isinstance(other, Protocol) or other.tasks != self.tasks:
            raise ArgumentError("other", f"a protocol of {self.tasks} tasks", check.show(other))
        if self.knobs.keys() != other.knobs.keys():
            raise ArgumentError(
                "other", f"the knobs {', '.join(self.knobs)}", f"{', '.join(other.knobs)}"
            )
        knobs: dict[str, Any] = {}
        for name, mine in self.knobs.items():
            plain = mine.ndim == other.knobs[name].ndim == 1
            pair = (mine, other.knobs[name]) if plain else (self.by_task(name), other.by_task(name))
            knobs[name] = np.concatenate(pair)
        return Protocol(
            np.concatenate([self.shares, other.shares]),
            edges=np.concatenate([self.edges, self.duration + other.edges[1:]]),
            **knobs,
        )

    def refine(self, factor: int) -> Protocol:
        """Return the same protocol with every step cut into `factor` equal steps."""
        factor = check.integer("factor", factor, at_least=1)
        inner = np.linspace(self.edges[:-1], self.edges[1:], factor, endpoint=False, axis=1)
        return self._on(np.append(inner.ravel(), self.duration))

    def split(self, times: ArrayLike) -> Protocol:
        """Return the same protocol with further edges at the given times (those inside it)."""
        room = _SAME * self.duration
        new = np.unique(check.array("times", times, ("n",)))
        near = np.clip(np.searchsorted(self.edges, new), 1, self.steps)
        gap = np.minimum(np.abs(self.edges[near] - new), np.abs(self.edges[near - 1] - new))
        apart = np.diff(new, prepend=-np.inf) > room
        inside = (new > 0) & (new < self.duration) & (gap > room) & apart
        return self._on(np.union1d(self.edges, new[inside])) if inside.any() else self

    def _on(self, edges: Floats) -> Protocol:
        """Return the same protocol on finer edges."""
        return self.select(self.step_at((edges[1:] + edges[:-1]) / 2), edges)

    def select(self, steps: Ints, edges: Floats) -> Protocol:
        """Return the protocol of the chosen steps (n,), in this order, between new edges."""
        knobs: dict[str, Any] = {name: values[steps] for name, values in self.knobs.items()}
        return Protocol(self.shares[steps], edges=edges, **knobs)

    def with_knobs(self, **knobs: Any) -> Protocol:
        """Return the same protocol with other values of some knobs."""
        return Protocol(self.shares, edges=self.edges, **(self.knobs | knobs))

    def round(self) -> Protocol:
        """Return the protocol with one task per step that follows the shares most closely.

        Sum-up rounding: on equal steps the integrated shares deviate by at most
        (½ + … + 1/T) × the step, so `refine` first to follow mixed shares more finely. A task that
        lags behind catches up at once, even where it no longer has a share.
        """
        from replan.core.rounding import sum_up

        available = np.ones(self.shares.shape, bool)
        rows = np.eye(self.tasks)[sum_up(self.shares, self.lengths, 0.0, available)]
        return Protocol(rows, edges=self.edges, **self.knobs)

    def sample(
        self, dimension: int, *, order: Literal["spread", "random"] = "spread", seed: int = 0
    ) -> Ints:
        """Return the task (from 0) of every SGD sample: duration × dimension of them.

        "spread" follows the shares as evenly as possible (deviation below one sample for two
        tasks); "random" draws every sample's task from the shares at its time, with the seed.
        """
        dimension = check.integer("dimension", dimension, at_least=1)
        check.one_of("order", order, ORDERS)
        rng = np.random.default_rng(check.integer("seed", seed))
        return Samples(self, dimension, order, rng).take(sample_count(self, dimension))[0]

    def stages(self, most: int = 4) -> list[Protocol]:
        """Return the protocols of 1, 2, … and at most `most` constant stages nearest to this one.

        Nearest in the mean square of shares, and of knobs in units of their largest values: each
        stage has their means. `Plan.stages` returns those that lose the least.
        """
        from replan.core.segments import constant_segments

        most = check.integer("most", most, at_least=1)
        ones, trained = np.ones_like(self.shares), self.shares + _UNTRAINED
        parts = [(self.shares, ones)]
        for values in self.knobs.values():
            weights = trained if values.ndim == 2 else ones[:, :1]
            size = np.abs(values).max() or 1.0
            parts.append((values.reshape(self.steps, -1), weights / size**2))
        rows, weights = (np.hstack(x) for x in zip(*parts, strict=True))
        widths = np.cumsum([part.shape[1] for part, _ in parts])[:-1]
        found = []
        segments = constant_segments(rows, weights * self.lengths[:, None])
        for steps, means in islice(segments, most):
            shares, *columns = np.split(means, widths, axis=1)
            knobs: dict[str, Any] = {
                name: column.reshape(len(steps), *values.shape[1:])
                for (name, values), column in zip(self.knobs.items(), columns, strict=True)
            }
            shares /= shares.sum(axis=1, keepdims=True)
            found.append(Protocol(shares, edges=self.edges[[*steps, self.steps]], **knobs))
        return found

    # Files, pictures and text

    def to_dict(self) -> dict[str, Any]:
        """Return `duration`, `edges`, `shares`, `knobs` and, for one task per step, `tasks` from 1.

        The learning rate is also there as `lr`.
        """
        knobs = {name: values.tolist() for name, values in self.knobs.items()}
        content: dict[str, Any] = {
            "duration": self.duration,
            "edges": self.edges.tolist(),
            "shares": self.shares.tolist(),
            "knobs": knobs,
        }
        if "lr" in knobs:
            content["lr"] = knobs["lr"]
        if self.is_discrete:
            content["tasks"] = (self.sequence + 1).tolist()
        return content

    def to_frame(self) -> pd.DataFrame:
        """Return a row per step: start, end, share_1, … and each knob: lr, or lr_1, … per task."""
        import pandas as pd

        header = ["start", "end", *(f"share_{t + 1}" for t in range(self.tasks))]
        for name, values in self.knobs.items():
            many = values.ndim == 2
            header += [f"{name}_{t + 1}" for t in range(self.tasks)] if many else [name]
        columns = [self.edges[:-1], self.edges[1:], self.shares, *self.knobs.values()]
        return pd.DataFrame(np.column_stack(columns), columns=header)

    @classmethod
    def load(cls, path: files.FilePath) -> Protocol:
        """Read a saved .json or .csv file, or the .json of any result that holds a protocol."""
        ending = files.suffix(path, [".json", ".csv"])
        with in_file(path):
            if ending == ".csv":
                return cls._from_csv(path)
            content = files.read_json(path)
            content = content.get("protocol", content)
            check.instance("protocol", content, dict, "a JSON object")
            return cls.from_dict(content)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Protocol:
        """Return the protocol described by `to_dict`; `lr` alone may stand for `knobs`."""
        for name in ("duration", "shares"):
            if name not in content:
                raise ArgumentError(name, "given", "nothing")
        duration = check.number("duration", content["duration"], above=0)
        edges = content.get("edges")
        knobs = check.instance("knobs", content.get("knobs", {}), Mapping, "values by name")
        if "lr" in content:
            knobs = {**knobs, "lr": content["lr"]}
        if edges is None:
            return cls(content["shares"], duration, **knobs)
        protocol = cls(content["shares"], edges=edges, **knobs)
        if abs(protocol.duration - duration) > _SAME * protocol.duration:
            raise ArgumentError(
                "duration", f"the last of `edges`, {protocol.duration:g}", f"{duration:g}"
            )
        return protocol

    @classmethod
    def _from_csv(cls, path: files.FilePath) -> Protocol:
        """Read the columns of `to_frame`; the losses in a plan's frame are ignored."""
        import pandas as pd

        try:
            frame = pd.read_csv(io.StringIO(files.read_text(path)), skipinitialspace=True)
        except ValueError as error:
            raise ArgumentError("path", "a CSV file", f"'{path}' ({error})") from None
        names = [str(name) for name in frame if not re.fullmatch(r"loss_\d+|weighted", str(name))]
        tasks = max(1, sum(name.startswith("share_") for name in names))

        def column(name: str) -> Floats:
            if name not in names:
                known = "start, end, share_1, … and a column for each knob, or one for each task"
                raise ArgumentError("columns", known, f"no column {name}")
            return check.array(name, frame[name].to_numpy())

        def by_task(name: str) -> Floats:
            return np.stack([column(f"{name}_{t + 1}") for t in range(tasks)], axis=1)

        start, end, shares = column("start"), column("end"), by_task("share")
        if not len(frame):
            raise ArgumentError("rows", "at least one step", "none")
        if np.any(np.abs(start[1:] - end[:-1]) > _SAME * end[-1]):
            raise ArgumentError("start", "where the previous step ends", "a gap")
        knobs = {re.sub(r"_\d+$", "", name): bool(re.search(r"_\d+$", name)) for name in names}
        values: dict[str, Any] = {
            name: by_task(name) if several else column(name)
            for name, several in knobs.items()
            if name not in ("start", "end", "share")
        }
        return cls(shares, edges=np.append(start, end[-1]), **values)

    def _repr_html_(self) -> str:
        return report.html(self._parts(), self)

    def __repr__(self) -> str:
        return f"Protocol({self.tasks} tasks, {self.steps} steps, duration {self.duration:g})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Protocol)
            and np.array_equal(self.edges, other.edges)
            and np.array_equal(self.shares, other.shares)
            and self.knobs.keys() == other.knobs.keys()
            and all(np.array_equal(self.knobs[name], other.knobs[name]) for name in self.knobs)
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays


def _knobs(given: Mapping[str, ArrayLike], steps: int, tasks: int) -> dict[str, Floats]:
    """Return the values of all knobs, (steps,) or (steps, T) each."""
    found = {}
    for name, value in given.items():
        values = check.array(name, value)
        if values.ndim == 0:
            values = np.full(steps, values)
        check.array(name, values, (steps, tasks) if values.ndim == 2 else (steps,))
        if name == "lr" and values.min() < 0:
            raise ArgumentError("lr", "learning rates of at least 0", f"{values.min():g}")
        found[name] = values
    return found


def sample_count(protocol: Protocol, dimension: int) -> int:
    """Return how many samples a protocol takes in `dimension` input dimensions."""
    samples = protocol.duration * dimension
    if not samples < 2**53:  # which floats can count
        raise ArgumentError(
            "dimension", "small enough for 2^53 samples, duration × dimension", f"{samples:g}"
        )
    return round(samples)


class Samples:
    """The samples of a protocol in `dimension` input dimensions, taken in order, a few at a time.

    order: "spread" (as evenly as the shares allow) or "random" (drawn from the shares with `rng`).
    available: (steps, T) whether a lagging task in "spread" can catch up in a step of the protocol;
    by default it always can.
    """

    def __init__(
        self,
        protocol: Protocol,
        dimension: int,
        order: str,
        rng: np.random.Generator,
        available: Bools | None = None,
    ) -> None:
        self.protocol, self.dimension, self.order, self.rng = protocol, dimension, order, rng
        self.available = available
        self.taken = 0
        self._lag = np.zeros(protocol.tasks)

    def take(self, count: int) -> tuple[Ints, Ints]:
        """Return tasks (from 0) and steps of the protocol (count,) of the next samples."""
        which = np.arange(self.taken, self.taken + count)
        self.taken += count
        steps = self.protocol.step_at((which + 0.5) / self.dimension)
        shares = self.protocol.shares[steps]
        if self.order == "random":
            above = self.rng.random(count)[:, None] >= np.cumsum(shares, axis=1)[:, :-1]
            return np.sum(above, axis=1, dtype=np.int64), steps
        from replan.core.rounding import follow  # compiled, slow to import

        available = self.available
        allowed = np.ones(shares.shape, bool) if available is None else available[steps]
        return np.asarray(follow(shares, np.ones(count), 0.0, allowed, self._lag)), steps
