"""Normalization: by statistics of layers, groups, instances and neighbours, and by lengths of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.ops.definition import Op, Trait, op


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    """Call `F.rms_norm` with every argument by position: x / sqrt(mean(x^2) + eps), times the weight.

    >>> rms_norm(torch.tensor([3.0, 4.0]), (2,), None, 0.0)
    tensor([0.8485, 1.1314])
    """
    return F.rms_norm(input, list(normalized_shape), weight, eps)


_INSTANCE_NORM = "input running_mean=None running_var=None weight=None bias=None use_input_stats=True momentum=0.1 eps=1e-05"
_NORM = Trait.NORM | Trait.NEVER_BOOLEAN
_KEEPS_SIGN = Trait.KEEPS_SIGN | Trait.NEVER_BOOLEAN

ROWS: tuple[Op, ...] = (
    op("layer_norm", F.layer_norm, "input normalized_shape weight=None bias=None eps=1e-05", "layer_norm",
       ignored=("cudnn_enable",), traits=_NORM,
       example=lambda x: F.layer_norm(x, (6,), torch.linspace(-1, 1, 6), torch.ones(6))),
    op("group_norm", F.group_norm, "input num_groups weight=None bias=None eps=1e-05", "group_norm",
       ignored=("cudnn_enabled",), traits=_NORM,
       example=lambda x: F.group_norm(x, 1, torch.linspace(-1, 1, 3), torch.ones(3))),
    op("instance_norm", F.instance_norm, _INSTANCE_NORM, "instance_norm", traits=_NORM,
       example=lambda x: F.instance_norm(x, weight=torch.linspace(-1, 1, 3), bias=torch.ones(3))),
    op("rms_norm", rms_norm, "input normalized_shape weight=None eps=None", "rms_norm", traits=_NORM,
       example=lambda x: rms_norm(x, (6,), torch.linspace(-1, 1, 6), 1e-5)),
    op("local_response_norm", F.local_response_norm, "input size alpha=0.0001 beta=0.75 k=1.0", "local_response_norm",
       traits=_KEEPS_SIGN, example=lambda x: F.local_response_norm(x, 2)),
    op("normalize", F.normalize, "input p=2.0 dim=1 eps=1e-12", "normalize", traits=_KEEPS_SIGN,
       example=lambda x: F.normalize(x, 2.0, 1)),
    op("cosine_similarity", F.cosine_similarity, "x1 x2 dim=1 eps=1e-08", "cosine_similarity", traits=_KEEPS_SIGN,
       example=lambda x: F.cosine_similarity(x, x.flip(0), 1)),
)  # fmt: skip
