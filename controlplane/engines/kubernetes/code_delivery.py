"""The init container that downloads a job's code into a pod's working directory.

No I/O, except that the container's program is read from its files once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.engines import base, place_files
from controlplane.engines.base import PodSpec
from controlplane.engines.kubernetes import code_fetch, mpi, names
from controlplane.engines.kubernetes.pod_scripts import last_line, python, without_python

CONTAINER = "fetch-code"
_REASONS = {
    code_fetch.NOT_FETCHED: base.CODE_NOT_FETCHED,
    code_fetch.MISSING: base.CODE_MISSING,
    code_fetch.NOT_PLACED: base.CODE_NOT_PLACED,
}


def init_containers(spec: PodSpec, main: Mapping[str, Any], code_image: str) -> list[dict[str, Any]]:
    """Return the init containers of a pod, in order; [] for most. `main`: the pod's own container; `code_image`: an
    image with python3, "" for the job's own."""
    found = []
    if spec.code is not None:
        variables = {
            code_fetch.URL: spec.code.url,
            code_fetch.TOKEN: spec.code.token,
            code_fetch.TREE: spec.code.tree,
            code_fetch.TARGET: names.WORK_DIR,
        }
        env = [{"name": name, "value": value} for name, value in variables.items()]
        step = _step(CONTAINER, python(code_fetch, place_files), main, "64Mi", "256Mi")
        found.append({**step, "env": env, **({"image": code_image} if code_image else {})})
    if command := mpi.wait_command(spec):
        found.append(_step(mpi.WAITING, command, main, "32Mi", "128Mi"))
    return found


def _step(
    name: str, command: Sequence[str], main: Mapping[str, Any], memory: str, limit: str
) -> dict[str, Any]:
    kept = ("image", "imagePullPolicy", "securityContext", "volumeMounts")
    return {
        "name": name,
        "command": list(command),
        # So that `failure` finds the program's last line in the container's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": memory}, "limits": {"memory": limit}},
        **{key: main[key] for key in kept if main.get(key)},
    }


def failure(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (reason, message) if this status of an init container shows that the code was not delivered, else None."""
    ended = (status.get("state") or {}).get("terminated") or {}
    if status.get("name") != CONTAINER or not ended.get("exitCode"):
        return None
    code, words = ended["exitCode"], last_line(ended)
    if hint := without_python(ended, "fetches the job's code"):
        return base.CODE_NOT_FETCHED, f"{hint} {words}"
    if code in _REASONS:
        return _REASONS[code], words
    return base.CODE_NOT_FETCHED, f"Fetching the job's code ended with exit code {code}. {words}"
