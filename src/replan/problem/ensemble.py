"""Ensemble: one problem with many starts or models, and one protocol for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.errors import ArgumentError, renamed
from replan.models import Knob
from replan.models.stacked import StackedModel
from replan.problem.problem import Problem
from replan.problem.risk import Risk, RiskLevel, risk_of

_SHARED = ("duration", "steps", "goal", "control", "limits", "settings")
_LISTED = ("weights", "running", "targets")  # of losses


class Ensemble(Problem):
    """Several problems that one protocol is for: what differs is what one does not know.

    It can be used wherever a `Problem` can. Its losses are the weighted means of those of its
    members; its objective is that of each member, and of these the mean, the mean of the worst part
    of them, or the worst.

    - `problems`: the members, a list or a dict by name, such as problems with the starts of several
      seeds or with models of several similarities. They have the same tasks, duration, steps,
      objective, controls, limits and knobs.
    - `member_weights`: (M,) how likely each member is, of sum 1; by default all are alike.
    - `risk`: "mean", "worst", or the part of the weights whose worst members count (conditional
      value at risk): 1 is the mean, and towards 0 it becomes the worst.
    - `unseen`: further problems of the same kind, a list or a dict by name, on which plans can be
      tested because they were not made for them. Where members have different weights, an
      `Ensemble` with weights of its own: only then do means over both compare.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> starts = [model.pretrain(seed=seed) for seed in (1, 2)]
        >>> problems = [replan.Problem(model, start, duration=20.0, steps=20) for start in starts]
        >>> both = replan.Ensemble(problems, risk="worst")
        >>> run = replan.evaluate(both, replan.strategies.interleaved(both))
        >>> f"{run.loss:.4f}", [f"{one.loss:.4f}" for one in run.members]
        ('0.0174', ['0.0076', '0.0174'])
    """

    _members: tuple[Problem, ...]
    _risk: Risk
    _names: tuple[str, ...]
    _unseen: Ensemble | None

    def __init__(
        self,
        problems: Sequence[Problem] | Mapping[str, Problem],
        member_weights: ArrayLike | None = None,
        risk: RiskLevel = "mean",
        *,
        unseen: Sequence[Problem] | Mapping[str, Problem] | Ensemble | None = None,
    ) -> None:
        names, members = _named(problems)
        first = members[0]
        for name, member in zip(names, members, strict=True):
            _check_same(first, member, name)
        found = risk_of(risk, member_weights, len(members))
        others = _to_test_on(unseen, found)
        if others is not None:
            _check_same(first, others.members[0], f"{others.names[0]} of `unseen`")
        own = {"_members": members, "_risk": found, "_names": names, "_unseen": others}
        for key, value in own.items():
            object.__setattr__(self, key, value)
        model = StackedModel(
            [member.model for member in members],
            [member.state.size for member in members],
            found.weights,
            names,
        )
        super().__init__(model, [member.start for member in members], **first.arguments)

    @property
    def members(self) -> tuple[Problem, ...]:
        """The problems."""
        return self._members

    @property
    def risk(self) -> Risk:
        """What the objectives of the members come to, with their weights."""
        return self._risk

    @property
    def names(self) -> tuple[str, ...]:
        """What people call the members."""
        return self._names

    @property
    def unseen(self) -> Ensemble | None:
        """The problems to test on, None without any."""
        return self._unseen

    def changed(self, **changes: Any) -> Ensemble:
        """Return the same ensemble with some arguments of its members changed.

        `start` is a list of their starts.
        """
        starts = check.items("start", changes.pop("start", self.start), "a start for each member")
        if len(starts) != len(self.members):
            raise ArgumentError(
                "start", f"{len(self.members)} starts, one for each member", f"{len(starts)}"
            )
        problems = [
            member.changed(start=start, **changes)
            for member, start in zip(self.members, starts, strict=True)
        ]
        named_problems = dict(zip(self.names, problems, strict=True))
        unseen = None if self.unseen is None else self.unseen.changed(**changes)
        return Ensemble(named_problems, self.risk.weights, self.risk.word, unseen=unseen)

    @property
    def by_name(self) -> dict[str, Problem]:
        """The members by their names."""
        return dict(zip(self.names, self.members, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the ensemble as the sections of a problem file, its starts as states."""
        first = self.members[0].to_dict()
        section = {
            "risk": self.risk.word,
            "weights": self.risk.weights.tolist(),
            "members": self._members_to_dict(),
        }
        if self.unseen is not None:
            section["test_members"] = self.unseen._members_to_dict()
            section["test_weights"] = self.unseen.risk.weights.tolist()
        shared = {key: x for key, x in first.items() if key not in ("model", "start")}
        return {"ensemble": section} | shared

    def _members_to_dict(self) -> list[dict[str, Any]]:
        """Return the names, models and starts of all members, as in problem files."""
        return [
            {"name": name, "model": content["model"], "start": content["start"]}
            for name, content in ((name, one.to_dict()) for name, one in self.by_name.items())
        ]

    def __repr__(self) -> str:
        return f"Ensemble({self.risk.words}, the first {self.members[0]!r})"


Problem.of_members = Ensemble


def _named(problems: Any) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """Return the names of problems, and these; refuse what is none, and an empty list."""
    if isinstance(problems, Mapping):
        names = tuple(check.word("problems", name) for name in problems)
        listed = list(problems.values())
    else:
        listed = list(check.items("problems", problems, "problems"))
        names = tuple(f"member {m + 1}" for m in range(len(listed)))
    if not listed:
        raise ArgumentError("problems", "at least one problem", "none")
    for one in listed:
        check.instance("problems", one, Problem, "problems")
        if isinstance(one, Ensemble):
            raise ArgumentError(
                "problems",
                "problems with one member each",
                f"{check.show(one)}: give the `members` of all ensembles to a single one",
            )
    return names, tuple(listed)


def _to_test_on(unseen: Any, risk: Risk) -> Ensemble | None:
    """Return the problems to test on as an ensemble; refuse equal weights beside others."""
    if unseen is None or isinstance(unseen, Ensemble):
        return unseen
    with renamed({"problems": "unseen"}):
        found = Ensemble(unseen)
    if np.ptp(risk.weights) > 0:
        raise ArgumentError(
            "unseen",
            "an Ensemble with `member_weights` where the members have them",
            check.show(unseen),
        )
    return found


def _check_same(first: Problem, other: Problem, name: str) -> None:
    """Refuse a member that differs from the first in more than its start and its model."""
    ours, theirs = first.model, other.model
    pairs: dict[str, tuple[Any, Any]] = {
        "tasks": (ours.tasks, theirs.tasks),
        "loss names": (ours.loss_names, theirs.loss_names),
        "knobs": _where_different(ours.knobs, theirs.knobs),
    }
    pairs |= {key: (getattr(first, key), getattr(other, key)) for key in _SHARED}
    pairs |= {
        key: tuple(np.asarray(getattr(one, key)).tolist() for one in (first, other))
        for key in _LISTED
    }
    pairs |= {
        key: tuple(getattr(one.availability, key).tolist() for one in (first, other))
        for key in ("arrivals", "departures")
        if first.duration == other.duration
    }
    for key, (one, another) in pairs.items():
        if one != another:
            raise ArgumentError(
                "problems",
                f"members with the same {key}",
                f"{check.show(one)} and, in {name}, {check.show(another)}",
            )


def _where_different(ours: Sequence[Knob], theirs: Sequence[Knob]) -> tuple[list[str], list[str]]:
    """Return the knobs that only one of two models has, in words."""

    def words(some: Sequence[Knob], others: Sequence[Knob]) -> list[str]:
        return [
            f"{one.name} = {one.default:g} from {one.low:g} to {one.high:g}"
            for one in some
            if one not in others
        ]

    return words(ours, theirs), words(theirs, ours)
