"""What the models of the gallery share: their sections in problem files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from replan import check
from replan.models.auto import AutoModel
from replan.models.capabilities import Sampled
from replan.schema import check_keys


class GalleryModel(AutoModel, Sampled):
    """A model by autodiff whose constructor's arguments are its parameters.

    entries: the names of the numbers in a state, and their defaults in the `[start]` section.
    """

    entries: ClassVar[dict[str, float | None]]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({arguments})"

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start that the `[start]` section describes: a number for each entry."""
        check_keys(content, self.entries, "start")
        numbers = {**self.entries, **content}
        return [check.number(f"start.{name}", value) for name, value in numbers.items()]

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""
        return dict(zip(self.entries, self.pack(start).tolist(), strict=True))
