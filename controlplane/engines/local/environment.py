"""Build the environment of a pod's command, which contains nothing of the control plane's own environment."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from controlplane.engines.base import NodeReport, PodSpec
from controlplane.engines.local.processes import TOKEN_VARIABLE
from controlplane.engines.pod_env import device_env, identity_env, thread_env

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"(\$?)\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def pod_environment(
    spec: PodSpec,
    image_env: Mapping[str, str],
    ports: Mapping[int, int],
    places: Mapping[str, Path],
    token: str,
) -> dict[str, str]:
    """Return the environment of a pod's command; later variables override earlier ones: defaults, the image's, the
    user's, the pod's identity.

    `ports`: declared port -> host port; `token`: marks the pod's processes. `places`: the directories `work`,
    `checkpoints` and `library` (contains the workloads package).
    """
    defaults = {
        "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
        "HOME": str(places["work"]),
        "PWD": str(places["work"]),
        "USER": "trainyard",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        # Otherwise progress lines would wait until the buffer of the pipe is full.
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(places["library"]),
        **thread_env(spec),
        "TRAINYARD_CHECKPOINT_DIR": str(places["checkpoints"]),
    }
    return {**defaults, **image_env, **spec.env, **identity_env(spec, ports), TOKEN_VARIABLE: token}


def device_variables(
    spec: PodSpec, node: NodeReport, is_simulated: bool, has_real_gpus: bool
) -> dict[str, str]:
    """Return the variables that describe the pod's devices and shares; a launcher gets the devices of its gang's
    other pods on `node` too. If the node is simulated but the machine has GPUs, these are hidden from CUDA, because
    they are not the pod's."""
    # A launcher's ranks run in its pod's environment, so it sees the devices of its whole gang on this node, its
    # own first.
    others = [index for member in spec.launches if member.node == spec.node for index in member.devices]
    indexes = list(dict.fromkeys([*(share.index for share in spec.devices), *others]))
    uuids = {device.index: device.uuid for device in node.devices}
    if not is_simulated:
        visible = ",".join(uuids[index] for index in indexes)
    else:
        visible = "" if has_real_gpus else ",".join(map(str, indexes))
    return {
        **device_env(spec, indexes),
        # NVML's order; CUDA's default puts the fastest device first.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible or "void",
    }


def expand(argument: str, env: Mapping[str, str]) -> str:
    """Return `argument` with `$(NAME)` replaced from `env` as Kubernetes does: an unknown name stays, `$$(NAME)`
    means `$(NAME)`. Unlike Kubernetes, other `$$` are kept, which scripts use for the shell's process id."""

    def replacement(match: re.Match[str]) -> str:
        escape, name = match.groups()
        return f"$({name})" if escape else env.get(name, match[0])

    return _REFERENCE.sub(replacement, argument)


def prepare_library(library: Path, workloads: Path) -> None:
    """Create the directory `library`, with a symbolic link to the `workloads` package as its only entry: it is put on
    pods' PYTHONPATH, where the repository root must not be. Safe to repeat, and while pods start."""
    library.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = library / "workloads"
    if link.is_symlink() and os.readlink(link) == str(workloads):
        return
    fresh = library / f".workloads.{secrets.token_hex(4)}"
    fresh.symlink_to(workloads)
    # Replaced atomically, because pods that start meanwhile import through the link.
    fresh.replace(link)


def copy_files(files: tuple[Path, ...], target: Path) -> None:
    """Copy the image's files to `target`, except those whose name exists there. Each file appears complete, even if
    several pods start at once."""
    for file in files:
        if not (target / file.name).exists():
            fresh = target / f".{file.name}.{secrets.token_hex(4)}"
            shutil.copyfile(file, fresh)
            fresh.replace(target / file.name)
