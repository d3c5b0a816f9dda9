"""Elastic: equal workers of which an attempt may have fewer than were asked for. How many is decided at each start: as
many as fit, at least `min_workers`. It may borrow, and when it is preempted it can go on smaller."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.fields import FieldError
from jobs.kinds.base import Batch


@dataclass(frozen=True, slots=True)
class Elastic(Batch):
    """See jobs.kinds.base.Kind."""

    name: str = "elastic"
    label: str = "Elastic"
    command: str = "submit-elastic"
    has_stable_names: bool = True
    is_elastic: bool = True

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        fewest, most = spec["min_workers"], spec["max_workers"]
        return {
            "min_workers": 1 if fewest is None else fewest,
            "max_workers": spec["workers"] if most is None else most,
        }

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        workers, errors = spec["workers"], []
        if spec["min_workers"] > workers:
            text = f"The job asks for {workers} workers; min_workers is at most that."
            errors.append(FieldError("/min_workers", "above_workers", text))
        if spec["max_workers"] < workers:
            text = f"The job asks for {workers} workers; max_workers is at least that."
            errors.append(FieldError("/max_workers", "below_workers", text))
        if spec["max_workers"] > 1 and (spec["gpu_memory_mib"] is not None or 0 < spec["gpus"] < 1000):
            text = "A share of a GPU takes exactly one worker."
            errors.append(FieldError("/max_workers", "share_needs_one_worker", text))
        return errors

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        return spec["min_workers"], spec["max_workers"]

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        """Add the variable names that scripts written for Arena read."""
        fewest, most = str(spec["min_workers"]), str(spec["max_workers"])
        return {
            "TRAINYARD_MIN_WORKERS": fewest,
            "TRAINYARD_MAX_WORKERS": most,
            "workers": str(pods),
            "minWorkers": fewest,
            "maxWorkers": most,
            "gpus": f"{spec['gpus'] / 1000:g}",
        }
