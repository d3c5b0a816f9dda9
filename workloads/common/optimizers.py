"""Torch's optimizers without the compiler that they import on first use, which takes 1.5 s of each process."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim import SGD, AdamW

# Torch keeps these from its compiler, and to do so imports it.
_KEPT_APART = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def _plain(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the optimizer's methods without the wrappers that torch's compiler adds; gradients stay disabled
    in `step`."""
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in _KEPT_APART}
    return {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))}


PlainSGD: type[SGD] = type("PlainSGD", (SGD,), _plain(SGD))
PlainAdamW: type[AdamW] = type("PlainAdamW", (AdamW,), _plain(AdamW))
