"""Container images of a cluster without a registry or downloads.

`trainyard.test/python:1` uses this machine's own userland: the image contains only links and empty
directories, and the runtime's base specification mounts /usr, the interpreter, the virtual environment and
the checkout read-only into every container. It has a size of kilobytes, but bash, sleep and Python with torch
and `workloads`, and is available as soon as containerd is. `trainyard.test/quickstart:1` is the same and runs
the quickstart, `trainyard.test/jupyter:1` JupyterLab; `trainyard.test/pause:1` runs busybox's `sleep`.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tools.kube.parts import IMAGE, JUPYTER_IMAGE, PAUSE_IMAGE, QUICKSTART_IMAGE

CHECKOUT = Path(__file__).resolve().parents[2]
VIRTUAL_ENVIRONMENT, IMAGE_CHECKOUT = "/opt/trainyard/environment", "/opt/trainyard/checkout"
USERLAND = ("bin", "sbin", "lib", "lib64")  # links into /usr on a merged Debian
DIRECTORIES = (
    "dev",
    "etc",
    "home",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "usr",
    "var/tmp",
    "work",
)
BUSYBOX = Path("/bin/busybox")
# A pod's sandbox gets no mounts, so the image must contain its program.
SLEEPER = "opt/busybox"
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home:/bin/bash\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def mounted() -> dict[Path, str]:
    """Return the read-only mounts of every container: path on this machine -> path in the container."""
    return {
        Path("/usr"): "/usr",
        # The interpreter keeps its path, since the virtual environment refers to it.
        Path(sys.base_prefix): sys.base_prefix,
        # The environment and the checkout get other paths: their own may be below a pod's mount path.
        Path(sys.prefix): VIRTUAL_ENVIRONMENT,
        CHECKOUT: IMAGE_CHECKOUT,
    }


def write_archive(path: Path) -> None:
    """Write a tar for `ctr images import`: manifest.json, one config per image, one layer for all."""
    layer = _layer()
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    images = {
        IMAGE: ["bash"],
        QUICKSTART_IMAGE: ["python", "-m", "workloads.quickstart.train"],
        JUPYTER_IMAGE: ["python", "-m", "workloads.jupyter.serve"],
        PAUSE_IMAGE: [f"/{SLEEPER}", "sleep", "infinity"],
    }
    with tarfile.open(path, "w") as archive:
        manifest = []
        _add(archive, "layer.tar", layer)
        for number, (name, command) in enumerate(images.items()):
            _add(archive, f"config-{number}.json", json.dumps(_config(diff_id, command)).encode())
            manifest.append({"Config": f"config-{number}.json", "RepoTags": [name], "Layers": ["layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def write_base_specification(path: Path) -> None:
    """Write the runtime's default specification with the mounts of `mounted`."""
    default = subprocess.run(["ctr", "oci", "spec"], check=True, capture_output=True).stdout
    specification = json.loads(default)
    specification["mounts"] += [
        _bind(source, place)
        for source, place in mounted().items()
        if place == "/usr" or not place.startswith("/usr/")  # an interpreter of the system's is there already
    ]
    path.write_text(json.dumps(specification))


def _bind(source: Path, place: str) -> dict[str, Any]:
    options = ["rbind", "rprivate", "ro"]
    return {"destination": place, "source": str(source), "type": "bind", "options": options}


def _config(diff_id: str, command: list[str]) -> dict[str, Any]:
    path = f"{VIRTUAL_ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    variables = [
        f"PATH={path}",
        f"PYTHONPATH={IMAGE_CHECKOUT}",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
    ]
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": variables, "Cmd": command, "WorkingDir": "/work"},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }


def _layer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in {"tmp", "var/tmp", "work"} else 0o755
            layer.addfile(entry)
        for name in USERLAND:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            layer.addfile(entry)
        for name, text in ACCOUNTS.items():
            _add(layer, name, text.encode())
        _add(layer, SLEEPER, BUSYBOX.read_bytes(), 0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
