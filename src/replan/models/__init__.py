"""What evolves in training: the interface of a model, the registry of kinds and the models."""

from replan.core.kernels import Kernels
from replan.core.schedule import Gradients, Schedule
from replan.models.auto import AutoModel
from replan.models.base import DifferentiableModel, Model
from replan.models.capabilities import Sampled
from replan.models.compiled_model import CompiledModel
from replan.models.gallery import Curriculum, Denoising, Dropout
from replan.models.knobs import Knob
from replan.models.rate_law import RateLaw
from replan.models.share_law import ShareLaw
from replan.models.teacher_student import Overlaps, TeacherStudent

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
    "RateLaw",
    "Sampled",
    "Schedule",
    "ShareLaw",
    "TeacherStudent",
]
