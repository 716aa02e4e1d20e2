"""The `[model]` and `[start]` sections of a problem file to start from, and its dials."""

from replan.models._dials import Dial

EXAMPLE = """\
[model]
kind = "teacher-student"          # the default
hidden = 2                        # hidden units of the student
similarity = 0.3                  # overlap of any two teachers
# tasks = 2                       # with `similarity`: how many tasks
# teachers = "drift"              # or "random" or "blocks": others than all alike
# seed = 0                        # of random teachers
# blocks = 2                      # how many blocks of teachers that are alike
# between = 0.0                   # overlap of teachers in different blocks
# teacher_overlaps = [[1.0, 0.3], [0.3, 1.0]]   # instead of similarity
# teacher_heads = [[1.0, 0.0], [0.0, 1.0]]      # tasks × teacher units
activation = "erf"                # or "relu" or "linear"
# noise = 0.0                     # standard deviation of the label noise
# train_heads = true              # false: the student's heads stay fixed
# head_lr = 1.0                   # the heads learn at this factor times lr
# batch = 1                       # samples per step of SGD; time still counts samples
# momentum = 0.0                  # the learning rate acts as lr / (batch (1 - momentum))

[start]                           # one of three
pretrain = { task = 1, duration = 1000.0, lr = 1.0, seed = 1 }
# fresh = { seed = 0 }            # random weights, nothing learned yet
# Q = [[0.1, 0.0], [0.0, 0.1]]    # or the overlaps themselves
# M = [[0.0, 0.0], [0.0, 0.0]]
# V = [[0.1, 0.1], [0.1, 0.1]]

"""

_PRETRAIN, _FRESH = "start.pretrain", "start.fresh"

DIALS = (
    Dial("model.similarity", "similarity γ", -0.25, 1.0),
    Dial("model.tasks", "tasks", 2, 5, 1, default=2, beside="model.similarity"),
    Dial("model.hidden", "hidden units", 1, 6, 1),
    Dial("model.noise", "label noise", 0.0, 1.0, default=0.0),
    Dial(f"{_PRETRAIN}.seed", "seed", 0, 99, 1, default=0, beside=_PRETRAIN),
    Dial(f"{_FRESH}.seed", "seed", 0, 99, 1, default=0, beside=_FRESH),
    Dial(f"{_PRETRAIN}.duration", "pretraining", 1.0, 2000.0, 1.0, 1000.0, _PRETRAIN, False),
    Dial(f"{_PRETRAIN}.lr", "rate of pretraining", 0.0, 5.0, 0.05, 1.0, _PRETRAIN, False),
    Dial("model.batch", "batch", 1, 32, 1, default=1, main=False),
    Dial("model.momentum", "momentum", 0.0, 0.95, default=0.0, main=False),
)
