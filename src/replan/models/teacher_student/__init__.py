"""The teacher-student model: the paper's."""

from replan.models.teacher_student.model import TeacherStudent
from replan.models.teacher_student.overlaps import Overlaps

__all__ = ["Overlaps", "TeacherStudent"]
