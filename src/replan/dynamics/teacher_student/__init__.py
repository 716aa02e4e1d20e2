"""The teacher-student model: its equations, their reverse, its files and its simulation."""

from replan.dynamics.teacher_student._model import Overlaps, TeacherStudent

__all__ = ["Overlaps", "TeacherStudent"]
