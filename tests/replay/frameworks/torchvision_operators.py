"""Lets Avalanche be imported where torchvision's compiled part does not fit PyTorch.

Not every PyTorch has a CPU build of torchvision. Without the compiled part, its import ends in
"operator torchvision::nms does not exist"; declaring the two operators that it looks up lets it
load. They cannot be called, and nothing here calls them.
"""

import torch

_library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
