"""What documents show of PyTorch beside docs/practice.md, whose own tests are with the adapters."""

import re
from pathlib import Path

import pytest

from documented import check_notebook

DOCS = Path(__file__).parents[2] / "docs"


def test_the_start_for_practitioners_runs(capsys):
    page = (DOCS / "start-practitioner.md").read_text(encoding="utf-8")
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), names)
    first, second, _ = capsys.readouterr().out.splitlines()
    before, after = ([float(x) for x in re.findall(r"[\d.]+", line)] for line in (first, second))
    assert before[0] < 0.2 < 0.5 < before[1]  # task 0 alone is known
    assert max(after) < 0.25  # both are
    assert names["sampler"].samples.tolist() == [420, 1680]


@pytest.mark.filterwarnings("default")  # those of the kernel
def test_the_notebook_from_plan_to_pytorch_runs():
    check_notebook("pytorch")
