"""What evolves: one file a model, and one for the Gaussian moments they share."""

from replan.dynamics.base import Dynamics, Integration, IntegrationError
from replan.dynamics.teacher_student import Overlaps, TeacherStudent

__all__ = ["Dynamics", "Integration", "IntegrationError", "Overlaps", "TeacherStudent"]
