"""What only a Kubernetes cluster has is refused in words where there is none, and not left out in silence."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.engines.base import NOT_SUPPORTED, EngineRefused, PodSpec, SecretValue
from controlplane.engines.simulated import check_spec, simulated_nodes

NODES = simulated_nodes({"node-a": {"devices": 1, "memory_mib": 1024}})
SPEC = PodSpec("a-1-0", "a", "job", "team-a", 1, 0, "node-a")


@pytest.mark.parametrize(
    "wish",
    [
        {"secret_env": {"KEY": SecretValue("wandb", "token")}},
        {"image_pull_secrets": ("registry",)},
        {"extra_resources": {"vpc.amazonaws.com/efa": "4"}},
    ],
)
def test_a_wish_for_what_only_a_cluster_has_is_refused(wish: dict[str, Any]) -> None:
    check_spec(SPEC, NODES)
    with pytest.raises(EngineRefused, match=next(iter(wish))) as caught:
        check_spec(replace(SPEC, **wish), NODES)
    assert caught.value.code == NOT_SUPPORTED
