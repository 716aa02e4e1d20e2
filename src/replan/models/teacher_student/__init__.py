"""The teacher-student model: its equations, their reverse, its files and its simulation."""

from replan.models.teacher_student.model import Overlaps, TeacherStudent

__all__ = ["Overlaps", "TeacherStudent"]
