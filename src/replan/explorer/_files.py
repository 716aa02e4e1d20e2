"""What can be downloaded: pictures, tables, protocols and problem files, as bytes."""

from __future__ import annotations

import json
from io import BytesIO, StringIO

from replan._common import files
from replan.control import Plan
from replan.trajectory import Trajectory


def picture(run: Trajectory, ending: str) -> BytesIO:
    """Return the losses under the colour bar as a picture, "png" or "svg"."""
    figure = run.plot()
    assert figure is not None
    data = BytesIO()
    figure.savefig(data, format=ending)
    data.seek(0)
    return data


def table(run: Trajectory) -> StringIO:
    """Return the losses at all times as CSV."""
    return StringIO(run.to_frame().to_csv(index=False))


def protocol(run: Trajectory, plan: Plan | None) -> StringIO:
    """Return the protocol and its curves as JSON; of an optimum, the whole plan."""
    content = (run if plan is None else plan).to_dict()
    return StringIO(json.dumps({"replan": files.VERSION} | content, allow_nan=False) + "\n")
