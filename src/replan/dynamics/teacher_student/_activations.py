"""What an activation stands for: its kernels, and the functions themselves for the simulators."""

from __future__ import annotations

from replan._common.compiled import by_type
from replan.dynamics._kernels import Kernels
from replan.dynamics.moments import erf, linear, relu
from replan.dynamics.teacher_student import (
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
        _reverse.pull_rate,
        _reverse.pull_losses,
        _work.make_work,
        _work.make_pull_work,
    ),
    "relu": Kernels(
        _relu_work.ReluParameters,
        _relu_kernels.rate,
        _relu_kernels.losses,
        _relu_reverse.pull_rate,
        _relu_reverse.pull_losses,
        _relu_work.make_work,
        _relu_work.make_pull_work,
    ),
    "linear": Kernels(
        _linear.LinearParameters,
        _linear.rate,
        _linear.losses,
        _linear.pull_rate,
        _linear.pull_losses,
        _linear.make_work,
        _linear.make_pull_work,
    ),
}

_MODULES = {"erf": erf, "relu": relu, "linear": linear}

# Of the parameters of a model, whose type says which activation is meant, and a field z
activation = by_type(
    {KERNELS[name].parameters: module.activation for name, module in _MODULES.items()}
)
slope = by_type({KERNELS[name].parameters: module.slope for name, module in _MODULES.items()})
