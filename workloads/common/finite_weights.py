"""Prevent checkpoints with NaN or infinite weights: a step's loss is computed before its update, so it does
not show them."""

from __future__ import annotations

import torch
from torch import distributed, nn

from workloads.common.finite import not_finite


def check_weights(net: nn.Module, step: int) -> None:
    """Raise LossNotFinite unless all weights on all ranks are finite. `step`: completed steps. All ranks must
    call it at the same step, so that all end here and none waits for the others."""
    is_lost = torch.stack([~weight.detach().isfinite().all() for weight in net.parameters()]).any().float()
    distributed.all_reduce(is_lost)
    if is_lost:
        raise not_finite("weights are no numbers", step)
