"""read_pilots(*paths): pilot files and the exports of experiment trackers as one long table."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from replan import check, files
from replan.errors import ArgumentError, in_file, renamed

_FORMATS = (
    "a table with columns run, step, lr, loss, or an export of Weights & Biases, TensorBoard or "
    "olmix"
)
_RUN = ("run", "run_id", "run_name", "name", "Name")
_STEP = ("step", "train/global_step", "trainer/global_step", "global_step", "iter", "_step")
_WORDS = ("run", "step", "tokens", "batch")  # which may be written with capitals
_SCALAR = ["Wall time", "Step", "Value"]  # the columns of TensorBoard's downloads
_SETTINGS = r"run|step|tokens|batch|continue|(share|unique_tokens)_.+"  # of a pilot file
_PILOT_LOSS = r"loss(_.+)?"
# Trackers' names, the likeliest first: transformers logs train/loss, and train/train_loss once.
_LOSSES = (_PILOT_LOSS, r"[^/_. ]+[/_. ]loss", r"(.*[/_. -])?(loss|bpb)(/.*)?")
_RATES = ("lr", r"(.*[/_. ])?(lr|learning[-_ ]rate)", r"(.*[/_. ])?(lr|learning[-_ ]rate)[-_/ ].*")


def read_pilots(
    *paths: str | Path, lr: str | None = None, loss: Sequence[str] = ()
) -> pd.DataFrame:
    """Read one or more files into a table with columns run, step, lr, loss and others.

    The columns of a file tell its format:

    - a pilot file (.csv, .json, .jsonl): run, step, lr, loss or loss_<name>, …
    - Weights & Biases: a panel (`Step`, `<run> - <metric>`), or the history of a run (`_step`),
      which is named after its file unless a column names the run
    - TensorBoard: a scalar (.csv, .json) in a file called run-<run>-tag-<tag>
    - olmix: ratios.csv and metrics.csv, one row per run: constant shares, and losses at step 1

    Files are joined on run and step, those without steps on run.

    - `lr`, `loss`: the metrics with the rate and the losses; by default those with common names.
    """
    if not paths:
        raise ArgumentError("pilots", "one or more files", "none")
    wanted = check.items("loss", loss, "metrics")
    tables = []
    for path in paths:
        source = check.path("pilots", path)
        with in_file(source):
            tables.append(_long(_parsed(source), source.stem))
    axes = sorted({table.attrs["axis"] for table in tables if "axis" in table.attrs})
    if len(axes) > 1:
        raise ArgumentError("step", "the same column in all files", " and ".join(axes))
    if not any("step" in table for table in tables):
        tables = [_mixtures(tables)]
        wanted = wanted or [x for x in tables[0] if not re.fullmatch(f"{_SETTINGS}|lr", x)]
    names = _names(list(dict.fromkeys(x for table in tables for x in table)), lr, wanted)
    tables = [table[_kept(table, names)].rename(columns=names) for table in tables]
    rows = _joined([table for table in tables if "step" in table])
    for table in tables:
        if "step" not in table:
            new = [x for x in table if x == "run" or x not in rows]
            rows = rows.merge(table[new], on="run", how="left")
    return rows


# One file


def _parsed(path: Path) -> pd.DataFrame:
    """Return a file's table, with numbers in all columns that consist of numbers."""
    suffix = files.suffix(path, [".csv", ".json", ".jsonl"], "pilots")
    try:
        with renamed({"path": "pilots"}):
            text = files.read_text(path)
    except OSError as error:
        raise ArgumentError("pilots", "a file that can be read", f"{error.strerror}") from None
    first = text.partition("\n")[0]
    if suffix == ".csv" and "," not in first and (";" in first or "\t" in first):
        expected = "a table with commas between its columns, and points in its numbers"
        raise ArgumentError("pilots", expected, f"{first.strip()!r}")
    try:
        if suffix == ".csv":
            table = _from_csv(text)
        else:
            lines = [text] if suffix == ".json" else filter(str.strip, text.split("\n"))
            content = [json.loads(line) for line in lines]
            table = _from_json(content[0] if suffix == ".json" else content)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArgumentError("pilots", _FORMATS, f"no table ({error})") from None
    names = [str(x) for x in table.columns]
    twice = [x for x in names if names.count(x) > 1]
    if twice:
        raise ArgumentError("pilots", "a table with different columns", f"{twice[0]!r} twice")
    table = table.set_axis(names, axis=1).dropna(how="all")
    if table.empty:
        raise ArgumentError("pilots", "a table with rows", "none")
    for name in table.columns.difference([*_RUN, "continue"]):
        try:
            table[name] = pd.to_numeric(table[name].mask(table[name].isin(["NaN", "nan"])))
        except (ValueError, TypeError, OverflowError):  # Pilots.from_table refuses texts by name
            table[name] = table[name].map(str, na_action="ignore")
    return table


def _from_csv(text: str) -> pd.DataFrame:
    # pandas would rename the second of two columns with the same name, if it knew the header.
    cells = pd.read_csv(io.StringIO(text), header=None, dtype=str, keep_default_na=False)
    table = cells.iloc[1:].set_axis(cells.iloc[0], axis=1).drop(columns="", errors="ignore")
    return table.mask(table == "").reset_index(drop=True)


def _from_json(content: Any) -> pd.DataFrame:
    """Return a list of rows, columns by name, or TensorBoard's list of triples as a table."""
    triples = isinstance(content, list) and content and isinstance(content[0], list)
    return pd.DataFrame(content, columns=_SCALAR) if triples else pd.DataFrame(content)


def _long(table: pd.DataFrame, stem: str) -> pd.DataFrame:
    """Return columns `run`, `step` (unless each run has only one row), and all metrics."""
    columns = list(table.columns)
    if columns == _SCALAR:
        return _scalar(table, stem)
    if len(columns) > 1 and all(" - " in x for x in columns[1:]):
        return _panel(table)
    words = {x: x.lower() for x in columns if x.lower() in _WORDS}
    table = table.rename(columns={x: word for x, word in words.items() if word not in columns})
    columns = list(table.columns)
    run = next((x for x in _RUN if x in columns), None)
    step = next((x for x in (*_STEP, "tokens") if x in columns), None)
    if run is None and step is None:
        raise ArgumentError("pilots", _FORMATS, f"columns {', '.join(columns)}")
    table.insert(0, "run", table.pop(run) if run else stem)
    if table["run"].isna().any():
        row = int(table["run"].isna().argmax()) + 1
        raise ArgumentError("run", "given in all rows", f"none in row {row}")
    table["run"] = table["run"].map(str)
    if step is None:
        return _of_whole_runs(table)
    table = table.assign(step=table[step])
    if step not in ("step", "tokens") or "_step" in columns:
        return _log(table, step)
    if run is None and table["step"].duplicated().any():
        expected = "a column of a table with several runs"
        raise ArgumentError("run", expected, f"columns {', '.join(columns)}")
    table.attrs = {"pilots": True}
    return table


def _log(table: pd.DataFrame, axis: str | None = None) -> pd.DataFrame:
    """Return one row per step of a tracker's log; `axis` names the steps where names differ.

    Metrics of one step may be logged in several rows, and a resumed training logs some steps again:
    the last values belong to the weights it ended with.
    """
    rows = table.dropna(subset=["step"])
    rows = rows.groupby(["run", "step"], sort=False, as_index=False).last()
    rows.attrs = {"axis": axis} if axis else {}
    return rows


def _scalar(table: pd.DataFrame, stem: str) -> pd.DataFrame:
    # A browser adds (1) to the second download of a name.
    name = re.fullmatch(r"run-(.+?)-tag-(.+?)( ?\(\d+\))?", stem)
    if name is None:  # TensorBoard's page "Time series" omits the tag: <run>.csv
        expected = "a file called run-<run>-tag-<tag>, for a scalar of TensorBoard"
        raise ArgumentError("pilots", expected, f"{stem!r}")
    return _log(pd.DataFrame({"run": name[1], "step": table["Step"], name[2]: table["Value"]}))


def _panel(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of a panel of Weights & Biases, whose first column is its x-axis."""
    axis, *lines = table.columns
    counts = re.search("step|iter|token", axis, re.IGNORECASE)
    parts = []
    for line in lines:
        run, _, metric = line.rpartition(" - ")
        if metric == "_step" or metric.endswith(("__MIN", "__MAX")):
            continue
        step = axis if counts else f"{run} - _step"  # exported where the x-axis is time or epochs
        if step not in table:
            raise ArgumentError("pilots", "a panel with steps on its x-axis", f"{axis!r}")
        part = pd.DataFrame({"run": run, "step": table[step], metric: table[line]}).dropna()
        parts += [part] if len(part) else []
    if not parts:
        raise ArgumentError("pilots", "a panel with values", f"columns {', '.join(lines)}")
    return _log(pd.concat(parts), "_step" if axis == "Step" or not counts else axis)


def _of_whole_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return settings or results of runs; columns that sum to 1 (olmix: to 0.01) are shares."""
    skipped = [x for x in table if x in (*_RUN[1:], "index") or x.startswith("Unnamed")]
    table = table.drop(columns=skipped)
    values = table.drop(columns="run")
    numbers = values.select_dtypes("number")
    total = numbers.sum(axis=1)
    if numbers.shape != values.shape or (numbers < 0).any(axis=None) or any(abs(total - 1) > 0.01):
        return table
    names = {x: x if x.startswith("share_") else f"share_{x}" for x in numbers}
    return numbers.div(total, axis=0).rename(columns=names).assign(run=table["run"])


# All files


def _mixtures(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the runs of olmix, which have the same rate and length, with one row each."""
    rows = tables[0]
    for table in tables[1:]:
        rows = rows.merge(table, on="run", how="inner")
    if not any(x.startswith("share_") for x in rows):
        raise ArgumentError("pilots", _FORMATS, f"columns {', '.join(rows)}, without steps")
    if rows.empty:
        raise ArgumentError("pilots", "files with the same runs", "no run in all of them")
    return rows.assign(step=1.0, lr=1.0)


def _names(columns: list[str], lr: str | None, loss: list[Any]) -> dict[str, str]:
    """Return the names that the columns to keep have in a pilot file."""
    rates = _first(_RATES, columns) if lr is None else [check.one_of("lr", lr, columns)]
    if len(rates) != 1:
        got = f"columns {', '.join(columns)}: add `lr`, or give its export as one more file"
        got = f"several: {', '.join(rates)}" if rates else got
        raise ArgumentError("lr", "the name of the column with the learning rate", got)
    named = [f"loss_{x}" if x not in columns and f"loss_{x}" in columns else x for x in loss]
    losses = [check.one_of("loss", x, columns) for x in named] or _first(_LOSSES, columns)
    names = {x: x for x in columns if re.fullmatch(_SETTINGS, x)} | {rates[0]: "lr"}
    for x in losses:
        kept = re.fullmatch(_PILOT_LOSS, x)
        names[x] = x if kept else "loss" if len(losses) == 1 else f"loss_{x}"
    return names


def _kept(table: pd.DataFrame, names: dict[str, str]) -> list[str]:
    """Return the columns that have names, and those of a pilot file that its reader must know."""
    unknown = table.attrs.get("pilots", False)
    known = f"{_SETTINGS}|lr|{_PILOT_LOSS}"
    return [x for x in table if x in names or (unknown and not re.fullmatch(known, x))]


def _first(patterns: Sequence[str], columns: list[str]) -> list[str]:
    """Return the columns that match the first pattern with any match."""
    matches = ([x for x in columns if re.fullmatch(p, x, re.IGNORECASE)] for p in patterns)
    return next((x for x in matches if x), [])


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return one row per run and step; a single file's duplicates stay, for from_table to name."""
    rows = pd.concat(tables, ignore_index=True)
    groups = rows.groupby(["run", "step"], sort=False, dropna=False)
    counts = groups.count()
    twice = counts[counts.gt(1).any(axis=1)]
    if twice.empty:
        return groups.first().reset_index()
    if len(tables) > 1:
        run, step = twice.index[0]
        got = f"{twice.iloc[0].idxmax()} of run {run} at step {step} twice"
        raise ArgumentError("pilots", "files that give each value once", got)
    return rows
