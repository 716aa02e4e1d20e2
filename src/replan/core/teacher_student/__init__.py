"""Kernels of the teacher-student model: rate, losses and their vjps by activation; SGD."""
