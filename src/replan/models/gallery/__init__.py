"""Models by autodiff: the equations in JAX, and what files and simulations need besides them."""

from replan.models.gallery.curriculum import Curriculum
from replan.models.gallery.denoising import Denoising
from replan.models.gallery.dropout import Dropout

__all__ = ["Curriculum", "Denoising", "Dropout"]
