"""Which backend a process group has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

from workloads.common import backends


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [([], "gloo"), (["GPU-a"], "nccl"), (["GPU-a", "GPU-b"], "nccl"), (["GPU-a", "GPU-b", "GPU-a"], "gloo")],
)
def test_ranks_that_share_a_gpu_use_gloo_since_nccl_refuses_them(gpus, backend):
    assert backends.backend_of(gpus) == backend


@pytest.mark.parametrize(("other", "backend", "has_id"), [("GPU-b", "nccl", True), ("GPU-a", "gloo", False)])
def test_ranks_tell_each_other_their_gpus_before_the_group_is_formed(monkeypatch, other, backend, has_id):
    device, store, asked = torch.device("cuda", 0), HashStore(), {}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-a"))
    monkeypatch.setattr(
        distributed, "init_process_group", lambda name, **given: asked.update(given, name=name)
    )
    store.set("gpu-1", other)

    backends.form_group(store, 0, 2, device)

    assert asked["name"] == backend
    assert asked["device_id"] == (device if has_id else None)
