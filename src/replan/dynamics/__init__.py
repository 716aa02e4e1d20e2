"""What evolves in training: interfaces, the registry of kinds, the integrator and the models."""

from typing import TYPE_CHECKING, Any

from replan._common.sections import from_keys
from replan.dynamics._capabilities import (
    Chain,
    HasOverlaps,
    Simulable,
    require,
)
from replan.dynamics._compiled_dynamics import CompiledDynamics
from replan.dynamics._dials import Dial
from replan.dynamics._dynamics import DifferentiableDynamics, Dynamics, Pieces, Pulled
from replan.dynamics._integrate import Integration, IntegrationError, integrate
from replan.dynamics._kernels import Kernels
from replan.dynamics._knobs import LR, Knob
from replan.dynamics._registry import find, register
from replan.dynamics._sampled import Sampled
from replan.dynamics.auto import AutoDynamics
from replan.dynamics.curriculum import Curriculum
from replan.dynamics.denoising import Denoising
from replan.dynamics.dropout import Dropout
from replan.dynamics.teacher_student import Overlaps, TeacherStudent

if TYPE_CHECKING:
    from replan._common.compiled import compiled

__all__ = [
    "LR",
    "AutoDynamics",
    "Chain",
    "CompiledDynamics",
    "Curriculum",
    "Denoising",
    "Dial",
    "DifferentiableDynamics",
    "Dropout",
    "Dynamics",
    "HasOverlaps",
    "Integration",
    "IntegrationError",
    "Kernels",
    "Knob",
    "Overlaps",
    "Pieces",
    "Pulled",
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
        from replan._common.compiled import compiled

        return compiled
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
