"""The `[model]` and `[start]` sections of a problem file to start from."""

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
