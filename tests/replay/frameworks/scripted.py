"""What every adapter must do: what the policy does by itself, and an example that runs."""

import io
import math
import os
import runpy
import signal
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from replan.errors import ArgumentError

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


def tasks_of(batches):
    """Return how many samples of each batch are of two tasks with 50 samples each."""
    return [[sum(i < 50 for i in batch), sum(i >= 50 for i in batch)] for batch in batches]


def refused(name, call):
    """Return whether a call is refused because of an argument of this name."""
    with pytest.raises(ArgumentError) as caught:
        call()
    return caught.value.name == name


def run_to_the_end(*command):
    """Run a command that starts processes; end them all, whatever happens."""
    run = subprocess.Popen([sys.executable, *map(str, command)], start_new_session=True)
    try:
        assert run.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def check_example(name):
    """Run an example with one seed; refuse one that does not show what it should."""
    folder, printed = Path(__file__).parents[3] / "examples", io.StringIO()
    with (
        patch.object(sys, "path", [str(folder), *sys.path]),
        patch.dict(os.environ),
        redirect_stdout(printed),
    ):
        example = runpy.run_path(str(folder / f"{name}.py"))
        rows = example["compare"](0)
        example["show"](rows)
    assert max(map(len, printed.getvalue().splitlines())) <= 85
    fixed, focus = rows
    assert (fixed["switch"], fixed["replayed"]) == (0, 0.5)
    assert focus["switch"] > 0
    assert 0 < focus["replayed"] < 0.5
    assert all(0 < row["mean loss"] < 0.6 for row in rows)
