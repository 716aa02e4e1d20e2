from pathlib import Path

import numpy as np
import pytest

from replan.vision import Images


@pytest.fixture(scope="session")
def images():
    """500 images of Fashion-MNIST: see tests/data/README.md."""
    with np.load(Path(__file__).parents[1] / "data" / "fashion_subset.npz") as found:
        return Images(*(found[name] for name in Images._fields))
