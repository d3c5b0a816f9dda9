"""docs/reference/pods.md names what the code knows."""

from __future__ import annotations

from pathlib import Path

from controlplane.config.images import BUILT_IN, load_catalogue
from controlplane.engines import base
from controlplane.engines.base import DeviceShare, PodSpec
from controlplane.engines.local.environment import device_variables, pod_environment
from controlplane.engines.simulated import simulated_nodes

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "pods.md").read_text()
USUAL = {
    "PATH",
    "HOME",
    "PWD",
    "USER",
    "SHELL",
    "LANG",
    "TERM",
    "PYTHONUNBUFFERED",
    "PYTHONPATH",
    "CUDA_DEVICE_ORDER",
}
REASONS = (
    base.COMPLETED, base.EXIT_CODE, base.STOPPED, base.KILLED, base.OUT_OF_MEMORY, base.COMMAND_NOT_FOUND,
    base.COMMAND_NOT_EXECUTABLE, base.WORKING_DIR_MISSING, base.SHIM_LOST, base.NODE_LOST, base.IMAGE_UNKNOWN,
)  # fmt: skip


def test_it_names_every_variable_of_a_pod():
    (node,) = simulated_nodes({"n": {"devices": 1, "memory_mib": 1}})
    spec = PodSpec("p", "j", "job", "team", 1, 0, "n", devices=(DeviceShare(0, 1000, 1),))
    places = dict.fromkeys(("work", "checkpoints", "library"), Path("/x"))
    variables = pod_environment(spec, {}, {}, places, "token") | device_variables(spec, node, True, False)
    assert not [name for name in variables if name not in USUAL and f"`{name}`" not in PAGE]


def test_it_names_every_image_and_reason():
    images = [image.name for image in load_catalogue(BUILT_IN).images]
    assert not [word for word in (*images, *REASONS) if f"`{word}`" not in PAGE]
