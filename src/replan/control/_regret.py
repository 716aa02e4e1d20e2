"""regret(ensemble, protocols) → Regret: the price of not knowing which member one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replan import check, files
from replan.check import Floats
from replan.control._solve import solve
from replan.control.solver import Solver
from replan.errors import ArgumentError
from replan.problem import Ensemble, Problem
from replan.problem.risk import Risk
from replan.progress import Meter, Watch
from replan.protocol import Protocol
from replan.trajectory import evaluate

if TYPE_CHECKING:
    import pandas as pd

_LEVELS = {"median": 0.5, "quantile_90": 0.9, "largest": 1.0}


class Own(NamedTuple):
    """The members of an ensemble, each with the least objective that is known to be possible.

    names: of the members. best: (M,) their own optima. values: by protocol, (M,) what it reaches.
    """

    names: tuple[str, ...]
    best: Floats
    values: dict[str, Floats]


@dataclass(frozen=True, eq=False, repr=False)
class Regret:
    """What protocols lose on members of an ensemble against the best for each of them alone.

    ensemble, protocols; seen: on its members. unseen: on those that it has to test on, None if it
    has none.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> starts = [model.pretrain(seed=seed) for seed in (1, 2)]
        >>> problems = [replan.Problem(model, start, duration=20.0, steps=20) for start in starts]
        >>> both = replan.Ensemble(problems)
        >>> found = replan.regret(both, {"half": replan.strategies.interleaved(both)})
        >>> found.of("half").round(3)
        array([0.007, 0.007])
    """

    ensemble: Ensemble
    protocols: dict[str, Protocol]
    seen: Own
    unseen: Own | None

    def of(self, protocol: str, *, unseen: bool = False) -> Floats:
        """Return by how much (M,) each member's objective lies above its own optimum."""
        own = self._own(unseen)[0]
        return np.asarray(own.values[check.one_of("protocol", protocol, own.values)] - own.best)

    def _own(self, unseen: bool) -> tuple[Own, Risk]:
        """Return what is known of members, or of unseen ones, and these with their weights."""
        if not unseen:
            return self.seen, self.ensemble.risk
        if self.unseen is None or self.ensemble.unseen is None:
            raise ArgumentError("unseen", "an ensemble with members to test on", "none")
        return self.unseen, self.ensemble.unseen.risk

    def _mean(self, protocol: str, *, unseen: bool) -> float:
        return float(self._own(unseen)[1].weights @ self.of(protocol, unseen=unseen))

    @property
    def gaps(self) -> dict[str, float]:
        """By protocol, how much more its mean regret is on unseen members than on its own.

        A protocol that only fits the members that it was made for has a large one. Both means are
        weighted.
        """
        return {
            name: self._mean(name, unseen=True) - self._mean(name, unseen=False)
            for name in (self.protocols if self.unseen is not None else ())
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""
        return {
            name: {
                part: self._summary(name, unseen=part == "unseen")
                for part in ("seen", *(["unseen"] if self.unseen is not None else []))
            }
            for name in self.protocols
        }

    def _summary(self, protocol: str, *, unseen: bool) -> dict[str, Any]:
        (own, risk), regrets = self._own(unseen), self.of(protocol, unseen=unseen)
        return {
            "mean": self._mean(protocol, unseen=unseen),
            **{name: risk.quantile(regrets, level) for name, level in _LEVELS.items()},
            "members": [
                {"name": name, "value": value, "best": best, "regret": value - best}
                for name, value, best in zip(
                    own.names, own.values[protocol].tolist(), own.best.tolist(), strict=True
                )
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per protocol and member: protocol, member, seen, value, best, regret."""
        import pandas as pd

        rows = [
            {"protocol": name, "member": one["name"], "seen": part == "seen"}
            | {key: one[key] for key in ("value", "best", "regret")}
            for name, parts in self.to_dict().items()
            for part, found in parts.items()
            for one in found["members"]
        ]
        return pd.DataFrame(rows)

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            content = {"regret": self.to_dict(), "problem": self.ensemble.to_dict()}
            return files.write_json(path, content)
        return files.write_frame(path, self.to_frame())

    def __repr__(self) -> str:
        return f"Regret({', '.join(self.protocols)}; {len(self.seen.names)} members)"

    def __str__(self) -> str:
        rows = [["regret against each member's own optimum", "mean", "median", "90 %", "largest"]]
        for name, parts in self.to_dict().items():
            for part, found in parts.items():
                count = len(found["members"])
                words = f"{name}, {count} {'members' if part == 'seen' else 'unseen'}"
                rows.append([words, *(f"{found[key]:.4g}" for key in ("mean", *_LEVELS))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def regret(
    ensemble: Ensemble,
    protocols: Protocol | Mapping[str, Protocol],
    *,
    solver: Solver | None = None,
    progress: Watch = False,
) -> Regret:
    """Compare protocols for an ensemble with the best protocol for each of its members alone.

    Also on its test members, `unseen`, if it has any.

    **Main arguments**

    - `ensemble`: such as the one that a plan was made for.
    - `protocols`: one, or several by name; a plan's is its `protocol`.

    **Other arguments**

    - `solver`: that looks for the members' own optima, as in `solve`; it begins from the protocols
      too. A relaxed optimum counts: protocols may mix tasks within a step.
    - `progress`: True shows a bar; a function is called with a `Progress` now and then.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> starts = [model.pretrain(seed=seed) for seed in (1, 2)]
        >>> problems = [replan.Problem(model, start, duration=20.0, steps=20) for start in starts]
        >>> both = replan.Ensemble(problems)
        >>> plan = replan.solve(both)
        >>> found = replan.regret(both, plan.protocol)
        >>> bool(np.all(found.of("protocol") >= 0))
        True
    """
    check.instance("ensemble", ensemble, Ensemble, "an Ensemble")
    named = dict(protocols) if isinstance(protocols, Mapping) else {"protocol": protocols}
    if not named:
        raise ArgumentError("protocols", "at least one", "none")
    for name, protocol in named.items():
        ensemble.accept(protocol, check.word("protocols", name))
    parts = [ensemble, *([] if ensemble.unseen is None else [ensemble.unseen])]
    with Meter(progress, "members", sum(len(part.members) for part in parts)) as meter:
        found = [_own(part, named, solver, meter) for part in parts]
    return Regret(ensemble, named, found[0], found[1] if len(found) > 1 else None)


def _own(
    ensemble: Ensemble, protocols: dict[str, Protocol], solver: Solver | None, meter: Meter
) -> Own:
    values = {name: evaluate(ensemble, one).member_losses for name, one in protocols.items()}
    best = []
    for m, member in enumerate(ensemble.members):
        least = min(rows[m] for rows in values.values())
        best.append(min(least, own_optimum(member, solver, list(protocols.values()))))
        meter.advance()
    return Own(ensemble.names, np.array(best), values)


def own_optimum(
    member: Problem, solver: Solver | None = None, starts: Sequence[Protocol] | None = None
) -> float:
    """Return the least objective that a search finds, of protocols that may mix tasks in a step."""
    plan = solve(member, solver, start=starts)
    if plan.status == "stopped":
        raise KeyboardInterrupt
    relaxed = plan.certificate.relaxed_value
    return plan.loss if relaxed is None else min(plan.loss, relaxed)
