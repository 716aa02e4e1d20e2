"""What an activation stands for: its kernels, and the functions themselves for the simulators."""

from __future__ import annotations

from replan.core.compiled import by_type
from replan.core.kernels import Kernels
from replan.core.moments import erf, linear, relu
from replan.models.teacher_student import (
    _kernels,
    _linear,
    _relu_kernels,
    _relu_reverse,
    _relu_work,
    _reverse,
    _work,
)

KERNELS = {
    "erf": Kernels(
        _work.Parameters,
        _kernels.rate,
        _kernels.losses,
        _reverse.rate_vjp,
        _reverse.losses_vjp,
        _work.make_work,
        _work.make_vjp_work,
    ),
    "relu": Kernels(
        _relu_work.ReluParameters,
        _relu_kernels.rate,
        _relu_kernels.losses,
        _relu_reverse.rate_vjp,
        _relu_reverse.losses_vjp,
        _relu_work.make_work,
        _relu_work.make_vjp_work,
    ),
    "linear": Kernels(
        _linear.LinearParameters,
        _linear.rate,
        _linear.losses,
        _linear.rate_vjp,
        _linear.losses_vjp,
        _linear.make_work,
        _linear.make_vjp_work,
    ),
}

_MODULES = {"erf": erf, "relu": relu, "linear": linear}

# Of the parameters of a model, whose type says which activation is meant, and a field z
activation = by_type(
    {KERNELS[name].parameters: module.activation for name, module in _MODULES.items()}
)
slope = by_type({KERNELS[name].parameters: module.slope for name, module in _MODULES.items()})
