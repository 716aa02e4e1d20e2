"""What every integration must do: what the policy does by itself, and an example that runs."""

import io
import math
import os
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import torch

BATCH = 5

# Settings of FocusThenReplay, and the batch after which the script's losses end its focus phase.
RULES = [
    ({"until": "halved"}, 9),
    ({"until": "met", "max_focus": math.inf}, 13),
    ({"until": "met"}, 10),  # half of an epoch of 20 batches
]

torch.set_num_threads(1)  # for networks this small, threads cost ten times what they save


def losses_after(batches):
    """Return losses of two tasks that meet after 12 batches."""
    return {0: 0.25, 1: 0.25 + 0.0625 * (12 - batches)}


def policy_by_hand(batches, policy, size=BATCH):
    """Return the counts of each task by batch of a policy told losses after every other batch."""
    policy.epoch_steps = batches * size
    counts = []
    for number in range(1, batches + 1):
        counts.append(policy.next_counts(size).tolist())
        if number % 2 and policy.needs_losses:
            policy.observe(losses_after(number))
    return counts


def run_documented(heading, seed=0, **known):
    """Run the Python of a section of docs/practice.md; return the names it made."""
    page = (Path(__file__).parents[2] / "docs" / "practice.md").read_text(encoding="utf-8")
    section = re.split(r"\n## ", page.split(f"\n## {heading}\n")[1])[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    assert code
    code = code.replace("torch.manual_seed(0)", f"torch.manual_seed({seed})")
    exec(compile(code, heading, "exec"), known)
    return known


def rows_of_example(name):
    """Run an example with one seed; return what it printed of each way to train, by column."""
    folder, printed = Path(__file__).parents[2] / "examples", io.StringIO()
    with (
        patch.object(sys, "path", [str(folder), *sys.path]),
        patch.dict(os.environ),
        redirect_stdout(printed),
    ):
        example = runpy.run_path(str(folder / f"{name}.py"))
        example["show"](example["compare"](0))
    text = printed.getvalue()
    head, *lines = text.split("\n\n")[0].splitlines()
    names = [name.strip() for name in head.split("  ") if name.strip()]
    width = len(names)
    assert max(map(len, text.splitlines())) <= 85
    rows = {}
    for line in lines:
        way, *cells = line.rsplit(maxsplit=width)
        numbers = [float(cell.replace(",", "").rstrip("%")) for cell in cells]
        rows[way.strip()] = dict(zip(names, numbers, strict=True))
    return rows


def check_example(rows):
    """Refuse an example that does not show what it should."""
    assert list(rows) == ["fixed replay", "focus, then replay"]
    fixed, focus = rows.values()
    assert fixed["switch"] == 0
    assert fixed["replayed"] == 50
    assert focus["switch"] > 0
    assert 0 < focus["replayed"] < 50
    for row in rows.values():
        assert 0 < row["mean loss"] < 0.6
        assert abs((row["old loss"] + row["new loss"]) / 2 - row["mean loss"]) < 0.002
        assert abs(row["forgetting"]) < row["old loss"]
