"""What evolves in training: interfaces, the registry of kinds, the integrator and the models."""

from typing import TYPE_CHECKING, Any

from replan.problem.sections import from_keys
from replan.models.capabilities import (
    Chain,
    HasOverlaps,
    Outcomes,
    Realised,
    Simulable,
    require,
)
from replan.models.compiled_model import CompiledModel
from replan.models._dials import Dial
from replan.models.base import DifferentiableModel, Model, Schedule, Gradients
from replan.models.integrator import Integration, IntegrationError, integrate
from replan.core.kernels import Kernels
from replan.models.knobs import LR, Knob
from replan.models.registry import find, register
from replan.models.sampled import Sampled
from replan.models.auto import AutoModel
from replan.models.curriculum import Curriculum
from replan.models.denoising import Denoising
from replan.models.dropout import Dropout
from replan.models.teacher_student import Overlaps, TeacherStudent

if TYPE_CHECKING:
    from replan.core.compiled import compiled

__all__ = [
    "LR",
    "AutoModel",
    "Chain",
    "CompiledModel",
    "Curriculum",
    "Denoising",
    "Dial",
    "DifferentiableModel",
    "Dropout",
    "Model",
    "HasOverlaps",
    "Integration",
    "IntegrationError",
    "Kernels",
    "Knob",
    "Outcomes",
    "Overlaps",
    "Schedule",
    "Gradients",
    "Realised",
    "Sampled",
    "Simulable",
    "TeacherStudent",
    "compiled",
    "find",
    "from_keys",
    "integrate",
    "register",
    "require",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: numba is loaded only when it is needed."""
    if name == "compiled":
        from replan.core.compiled import compiled

        return compiled
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
