"""The elastic kind: equal workers, of which an attempt may have fewer than requested. Each start takes as
many as fit, at least `min_workers`. Elastic jobs may exceed the quota, and may shrink instead of stopping
when they are preempted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from controlplane.fields import FieldError
from controlplane.scheduling.sizes import FASTEST, MOST_WORKERS, SLOWEST, nearest_sizes
from jobs.kinds.base import Batch, is_share

# Limit on the sizes listed in a message, so that it stays readable.
MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Elastic(Batch):
    """The kind `elastic`. Without declared sizes or steps, every number of workers from `min_workers` to
    `max_workers` is allowed."""

    name: str = "elastic"
    label: str = "Elastic"
    command: str = "submit-elastic"
    has_stable_names: bool = True
    is_elastic: bool = True

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        fewest, most, sizes = spec["min_workers"], spec["max_workers"], sorted(set(spec["worker_sizes"]))
        return {
            "min_workers": (sizes[0] if sizes else 1) if fewest is None else fewest,
            "max_workers": (sizes[-1] if sizes else spec["workers"]) if most is None else most,
            "worker_sizes": tuple(sizes),
        }

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        workers, errors = spec["workers"], []
        if spec["min_workers"] > workers:
            text = f"The job asks for {workers} workers; min_workers is at most that."
            errors.append(FieldError("/min_workers", "above_workers", text))
        if spec["max_workers"] < workers:
            text = f"The job asks for {workers} workers; max_workers is at least that."
            errors.append(FieldError("/max_workers", "below_workers", text))
        if spec["max_workers"] > 1 and is_share(spec):
            text = "A job with a share of a GPU has exactly one worker."
            errors.append(FieldError("/max_workers", "share_needs_one_worker", text))
        return errors or _sizes_refused(spec, self.sizes(spec))

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        return spec["min_workers"], spec["max_workers"]

    def sizes(self, spec: Mapping[str, Any]) -> tuple[int, ...]:
        # Jobs submitted to older versions have neither field.
        if step := spec.get("worker_step"):
            return _stepped(spec["min_workers"], spec["max_workers"], step)
        return tuple(spec.get("worker_sizes") or ())

    def speeds(self, spec: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
        # Jobs of older versions have none, or such as are refused today.
        found = sorted((int(workers), speed) for workers, speed in spec.get("worker_speeds", {}).items())
        return tuple(pair for pair in found if pair[0] <= MOST_WORKERS and SLOWEST <= pair[1] <= FASTEST)

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        """Return the variables with the job's limits and its number of workers; once more under the names that
        scripts written for Arena read."""
        fewest, most = str(spec["min_workers"]), str(spec["max_workers"])
        return {
            "TRAINYARD_MIN_WORKERS": fewest,
            "TRAINYARD_MAX_WORKERS": most,
            "workers": str(pods),
            "minWorkers": fewest,
            "maxWorkers": most,
            "gpus": f"{spec['gpus'] / 1000:g}",
        }


# Cached, so that thousands of equal jobs share one object.
@lru_cache(maxsize=1024)
def _stepped(fewest: int, most: int, step: int) -> tuple[int, ...]:
    """Return the sizes from `fewest` to `most` in steps of `step` workers."""
    return tuple(range(fewest, most + 1, step))


def sizes_text(sizes: Sequence[int], wanted: int) -> str:
    """Return a sentence with the allowed sizes (of many, the first MOST_SHOWN and the last) and those nearest to
    `wanted`."""
    near = " and ".join(map(str, nearest_sizes(sizes, wanted)))
    shown = ", ".join(map(str, sizes[:MOST_SHOWN])) + (
        f", ... {sizes[-1]}" if len(sizes) > MOST_SHOWN else ""
    )
    return f"Allowed are {shown} workers; nearest to {wanted}: {near}."


def _sizes_refused(spec: Mapping[str, Any], sizes: Sequence[int]) -> list[FieldError]:
    """Return errors if both `worker_sizes` and `worker_step` are given, or if the start size or, with `worker_sizes`,
    a bound is not among the allowed `sizes`; [] if `sizes` is empty."""
    if spec["worker_sizes"] and spec["worker_step"]:
        return [FieldError("/worker_step", "one_of", "Give either worker_sizes or worker_step.")]
    # With `step`, the bounds may be any numbers; they need not differ by a multiple of it.
    names = ("min_workers", "max_workers", "workers") if spec["worker_sizes"] else ("workers",)
    return [
        FieldError(f"/{name}", "size_not_allowed", sizes_text(sizes, spec[name]))
        for name in names
        if sizes and spec[name] not in sizes
    ]
