"""`yard submit --like JOB`: the spec of an earlier job, changed by the command line."""

from __future__ import annotations

from typing import Any

from controlplane.cli.lookup import job_id
from controlplane.cli.session import Session

# Fields that replace each other: a given command must not be combined with the earlier job's arguments.
_INSTEAD = {"command": ("args",), "gpus": ("gpu_memory_mib",), "gpu_memory_mib": ("gpus",)}


def spec_like(session: Session, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the job `name` as a submission. The fields in `given` replace its own and those that exclude
    them."""
    spec: dict[str, Any] = session.get(f"jobs/{job_id(session, name)}/spec")
    replaced = {other for field in given for other in _INSTEAD.get(field, ())}
    kept = {
        field: value for field, value in spec.items() if value not in (None, [], {}) and field not in replaced
    }
    if kept.get("code"):
        kept["code"] = {name: kept["code"][name] for name in ("tree", "commit")}
    return {**kept, **given}
