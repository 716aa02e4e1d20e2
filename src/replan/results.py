"""Result: what all results share: files, pictures, print and notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from replan import files, report

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Result(ABC):
    """A result that can be saved, drawn and printed.

    `plot` and `report` have a function with the name of its class that says what it looks like.
    """

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """Return the result as a table."""

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            files.write_json(path, self.to_dict())
        else:
            files.write_frame(path, self.to_frame())

    def plot(self, path: files.FilePath | None = None, **options: Any) -> Figure:
        """Draw the result; return the figure, and write it to `path`, a .png, .pdf or .svg file."""
        from replan import plot

        figure: Figure = getattr(plot, self._word)(self, path, **options)
        return figure

    @property
    def _word(self) -> str:
        return type(self).__name__.lower()

    def _parts(self) -> report.Parts:
        parts: report.Parts = getattr(report, self._word)(self)
        return parts

    def __str__(self) -> str:
        return report.text(self._parts())

    def _repr_html_(self) -> str:
        return report.html(self._parts(), getattr(self, "protocol", None))
