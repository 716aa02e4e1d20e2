"""Absent: stands in for the model of a saved result where that model is not available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from replan._common import check
from replan._common.check import Floats
from replan.dynamics._dynamics import DifferentiableDynamics, Pieces, Pulled
from replan.dynamics._knobs import Knob


class AbsentError(ValueError):
    """Something needs the model that is absent."""


class Absent(DifferentiableDynamics):
    """Stands in for a model of which only the `[model]` section is known.

    Results that were saved with that model can be read, but nothing can be computed again.
    """

    def __init__(
        self,
        section: Mapping[str, Any],
        tasks: int,
        knobs: Sequence[Knob],
        losses: Sequence[str],
        ends: Sequence[Knob],
        names: Sequence[str] | None = None,
    ) -> None:
        self.section, self.tasks = dict(section), tasks
        self.knobs, self.end_knobs, self._losses = knobs, ends, tuple(losses)
        self.kind = str(section.get("kind", "unknown"))  # type: ignore[misc]
        self._names = super().task_names if names is None else tuple(names)

    @property
    def task_names(self) -> tuple[str, ...]:
        """The names of the tasks, by default their numbers."""
        return self._names

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The names of the losses."""
        return self._losses

    def _refuse(self) -> NoReturn:
        raise AbsentError(
            "this result was loaded without its model, of kind "
            f"{check.show(self.kind)}: to compute anything anew, load it with `model=` given, or "
            "import the module that registers the kind"
        )

    def pack(self, start: Any) -> Floats:
        """Return an empty state."""
        return np.zeros(0)

    def unpack(self, states: Floats) -> Any:
        """Refuse: the form of states is not known."""
        self._refuse()

    def losses(self, states: Floats) -> Floats:
        """Refuse: the losses are not known."""
        self._refuse()

    def roll_out(self, start: Floats, pieces: Pieces) -> Floats:
        """Refuse: the rate is not known."""
        self._refuse()

    def pull_losses(self, states: Floats, cotangents: Floats) -> Floats:
        """Refuse: the losses are not known."""
        self._refuse()

    def pull_back(self, states: Floats, cotangents: Floats, pieces: Pieces, *_: Any) -> Pulled:
        """Refuse: the rate is not known."""
        self._refuse()

    def to_dict(self) -> dict[str, Any]:
        """Return the section as it was."""
        return self.section

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the section as it is."""
        return dict(content)

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return the section as it was."""
        return dict(start)
