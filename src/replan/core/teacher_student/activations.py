"""What an activation stands for: its kernels, and the functions themselves for the simulators."""

from __future__ import annotations

from replan.core.compiled import by_type
from replan.core.kernels import Kernels
from replan.core.moments import erf, linear, relu
from replan.core.teacher_student import erf as erf_kernels
from replan.core.teacher_student import (
    erf_vjp,
    relu_vjp,
    relu_work,
    work,
)
from replan.core.teacher_student import (
    linear as linear_kernels,
)
from replan.core.teacher_student import (
    relu as relu_kernels,
)

KERNELS = {
    "erf": Kernels(
        work.Parameters,
        erf_kernels.rate,
        erf_kernels.losses,
        erf_vjp.rate_vjp,
        erf_vjp.losses_vjp,
        work.make_work,
        work.make_vjp_work,
    ),
    "relu": Kernels(
        relu_work.ReluParameters,
        relu_kernels.rate,
        relu_kernels.losses,
        relu_vjp.rate_vjp,
        relu_vjp.losses_vjp,
        relu_work.make_work,
        relu_work.make_vjp_work,
    ),
    "linear": Kernels(
        linear_kernels.LinearParameters,
        linear_kernels.rate,
        linear_kernels.losses,
        linear_kernels.rate_vjp,
        linear_kernels.losses_vjp,
        linear_kernels.make_work,
        linear_kernels.make_vjp_work,
    ),
}

_MODULES = {"erf": erf, "relu": relu, "linear": linear}

# Of the parameters of a model, whose type says which activation is meant, and a field z
activation = by_type(
    {KERNELS[name].parameters: module.activation for name, module in _MODULES.items()}
)
slope = by_type({KERNELS[name].parameters: module.slope for name, module in _MODULES.items()})
