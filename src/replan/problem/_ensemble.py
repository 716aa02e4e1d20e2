"""Ensemble: one problem with many starts or models, and one protocol for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan._common import check
from replan.dynamics._members import DiscreteMembers, Members
from replan.problem._problem import Problem
from replan.problem._risk import Risk, RiskLevel, risk_of

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
    - `weights`: (M,) how likely each member is, of sum 1; by default all are alike.
    - `risk`: "mean", "worst", or the part of the weights whose worst members count (conditional
      value at risk): 1 is the mean, and towards 0 it becomes the worst.
    - `unseen`: further problems of the same kind, a list or a dict by name, on which plans can be
      tested because they were not made for them.

    names: of the members. unseen: an ensemble of the problems to test on, None without any.

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
    names: tuple[str, ...]
    unseen: Ensemble | None

    def __init__(
        self,
        problems: Sequence[Problem] | Mapping[str, Problem],
        weights: ArrayLike | None = None,
        risk: RiskLevel = "mean",
        *,
        unseen: Sequence[Problem] | Mapping[str, Problem] = (),
    ) -> None:
        names, members = _named(problems)
        first = members[0]
        for name, member in zip(names, members, strict=True):
            _check_same(first, member, name)
        found = risk_of(risk, weights, len(members))
        others = None
        if len(unseen) > 0:
            others = Ensemble(unseen)
            _check_same(first, others.members[0], f"{others.names[0]} of `unseen`")
        object.__setattr__(self, "unseen", others)
        for key, value in (("_members", members), ("_risk", found), ("names", names)):
            object.__setattr__(self, key, value)
        kind = DiscreteMembers if first.model.discrete else Members
        model = kind(
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

    def changed(self, **changes: Any) -> Ensemble:
        """Return the same ensemble with some arguments of its members changed.

        `start` is a list of their starts.
        """
        starts = changes.pop("start", [member.start for member in self.members])
        problems = [
            member.changed(start=start, **changes)
            for member, start in zip(self.members, starts, strict=True)
        ]
        unseen = {} if self.unseen is None else self.unseen.changed(**changes).by_name
        return Ensemble(
            dict(zip(self.names, problems, strict=True)),
            self.risk.weights,
            self.risk.word,
            unseen=unseen,
        )

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
        raise ValueError("`problems` expects at least one problem, got none")
    for one in listed:
        check.instance("problems", one, Problem, "problems")
        if isinstance(one, Ensemble):
            raise ValueError(
                f"`problems` expects problems with one member each, got {check.show(one)}: give "
                "the `members` of all ensembles to a single one"
            )
    return names, tuple(listed)


def _check_same(first: Problem, other: Problem, name: str) -> None:
    """Refuse a member that differs from the first in more than its start and its model."""
    ours, theirs = first.model, other.model
    pairs: dict[str, tuple[Any, Any]] = {
        "tasks": (ours.tasks, theirs.tasks),
        "loss names": (ours.loss_names, theirs.loss_names),
        "knobs": (list(ours.knobs), list(theirs.knobs)),
        "end knobs": (list(ours.end_knobs), list(theirs.end_knobs)),
        "discrete": (ours.discrete, theirs.discrete),
    }
    pairs |= {key: (getattr(first, key), getattr(other, key)) for key in _SHARED}
    pairs |= {
        key: tuple(np.asarray(getattr(one, key)).tolist() for one in (first, other))
        for key in _LISTED
    }
    pairs |= {
        key: tuple(getattr(one.presence, key).tolist() for one in (first, other))
        for key in ("arrivals", "departures")
        if first.duration == other.duration
    }
    for key, (one, another) in pairs.items():
        if one != another:
            raise ValueError(
                f"`problems` expects members with the same {key}, got {check.show(one)} and, in "
                f"{name}, {check.show(another)}"
            )
