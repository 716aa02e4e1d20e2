"""The paper's figures: each module computes its tables, draws them, and checks the claims."""

from replan.paper._make import FIGURES, IMAGE_FIGURES, LONG_FIGURES, Made, make
from replan.paper.claims import Claim

__all__ = ["FIGURES", "IMAGE_FIGURES", "LONG_FIGURES", "Claim", "Made", "make"]
