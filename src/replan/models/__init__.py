"""What evolves in training: the interface of a model, the registry of kinds and the models."""

from typing import TYPE_CHECKING, Any

from replan.core.kernels import Kernels
from replan.core.schedule import Gradients, Schedule
from replan.models.auto import AutoModel
from replan.models.base import DifferentiableModel, Model
from replan.models.capabilities import Sampled
from replan.models.compiled_model import CompiledModel
from replan.models.gallery import Curriculum, Denoising, Dropout
from replan.models.knobs import Knob
from replan.models.teacher_student import Overlaps, TeacherStudent

if TYPE_CHECKING:
    from replan.core.compiled import compiled

__all__ = [
    "AutoModel",
    "CompiledModel",
    "Curriculum",
    "Denoising",
    "DifferentiableModel",
    "Dropout",
    "Gradients",
    "Kernels",
    "Knob",
    "Model",
    "Overlaps",
    "Sampled",
    "Schedule",
    "TeacherStudent",
    "compiled",
]


def __getattr__(name: str) -> Any:
    """Import numba only when it is needed."""
    if name == "compiled":
        from replan.core.compiled import compiled

        return compiled
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
