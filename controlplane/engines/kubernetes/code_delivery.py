"""The init container that downloads a job's code into a pod's working directory.

Pure, except that the container's program is read from its files once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.engines import base, place_files
from controlplane.engines.base import PodSpec
from controlplane.engines.kubernetes import code_fetch, mpi, names
from controlplane.engines.kubernetes.pod_scripts import python, without_python

CONTAINER = "fetch-code"
_REASONS = {
    code_fetch.NOT_FETCHED: base.CODE_NOT_FETCHED,
    code_fetch.MISSING: base.CODE_MISSING,
    code_fetch.NOT_PLACED: base.CODE_NOT_PLACED,
}


def init_containers(spec: PodSpec, main: Mapping[str, Any], code_image: str) -> list[dict[str, Any]]:
    """Return the init containers of a pod, in order; `main` is the pod's own container."""
    steps = _fetch_container(spec, main, code_image), mpi.wait_container(spec, main)
    return [step for step in steps if step]


def _fetch_container(spec: PodSpec, main: Mapping[str, Any], image: str) -> dict[str, Any] | None:
    """Return the init container that fetches the code; None for a pod without code. `image`: an image with
    python3, "" for the job's own."""
    if spec.code is None:
        return None
    kept = ("image", "imagePullPolicy", "securityContext", "volumeMounts")
    variables = {
        code_fetch.URL: spec.code.url,
        code_fetch.TOKEN: spec.code.token,
        code_fetch.TREE: spec.code.tree,
        code_fetch.TARGET: names.WORK_DIR,
    }
    return {
        **{name: main[name] for name in kept if main.get(name)},
        **({"image": image} if image else {}),
        "name": CONTAINER,
        "command": list(python(code_fetch, place_files)),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }


def failure(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and sentence if the status of an init container explains why there is no code; None for any
    other status."""
    ended = (status.get("state") or {}).get("terminated") or {}
    if status.get("name") != CONTAINER or not ended.get("exitCode"):
        return None
    words = str(ended.get("message") or "").strip().splitlines() or [""]
    if hint := without_python(ended, "fetches the job's code"):
        return base.CODE_NOT_FETCHED, f"{hint} {words[-1]}"
    if ended["exitCode"] in _REASONS:
        return _REASONS[ended["exitCode"]], words[-1]
    return (
        base.CODE_NOT_FETCHED,
        f"Fetching the job's code ended with exit code {ended['exitCode']}. {words[-1]}",
    )
