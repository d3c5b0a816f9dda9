"""Make the scheduler's views of jobs from their rows."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings

from controlplane.clusters import quantities
from controlplane.loop.constructors import quick_constructor
from controlplane.scheduling.order import rank_at
from controlplane.scheduling.view import Extras, JobView, PodPlacement, placements_from_lists
from datasets.queries.job_data import JobData
from jobs import lifecycle
from jobs.kinds.registry import KINDS

# States in which the row's start time is the attempt's: in earlier ones it is still that of the previous attempt.
_HAVE_RUN = (*lifecycle.RUNNING_STATES, lifecycle.STOPPING)
_view = quick_constructor(JobView)


class _Request(NamedTuple):
    """What a job's view contains of its spec. `declared_seconds`: of its run time; `most_seconds`: its time limit."""

    spec: Mapping[str, Any]
    min_pods: int | None
    sizes: tuple[int, ...]
    milli_cpus: int
    memory_mib: int
    extras: Extras
    node_pool: str | None
    declared_seconds: int | None
    most_seconds: int | None


class JobViews:
    """Makes views of jobs. The requests of jobs whose rows share one spec object are read once: thousands of queued
    jobs may be alike."""

    def __init__(self) -> None:
        # By the id of the spec, which the request keeps alive.
        self._requests: dict[tuple[int, str], _Request] = {}

    def of(
        self,
        row: Mapping[str, Any],
        learned_seconds: int | None,
        placements: tuple[PodPlacement, ...],
        refused: tuple[str, ...],
        volume_wait: tuple[tuple[str, str], ...],
        data: JobData,
    ) -> JobView:
        """Return the view of one job. `learned_seconds`: of its run time, None if unknown; `refused`: the nodes that
        refused it; `volume_wait`: details of the volume that it waits for, () for none."""
        kind, state, details = row["kind"], row["state"], row["details"]
        is_queued = state == lifecycle.QUEUED
        # A preempted job counts as requesting its GPUs again from the moment it is stopped.
        is_waiting = is_queued or row["next_state"] == lifecycle.QUEUED
        request = self._requests.get((id(row["spec"]), kind)) or self._read(row["spec"], kind)
        # By position, in the order of JobView's fields: see quick_constructor.
        return _view(
            row["id"],
            row["project__name"],
            _rank(row, is_preempted=is_waiting and "by_job" in details),
            kind,
            "queued" if is_queued else "active",
            row["priority"],
            bool(row["is_preemptible"]),
            row["milli_gpus"],
            row["gpu_memory_mib"],
            row["pods_wanted"],
            request.min_pods,
            request.sizes,
            request.milli_cpus,
            request.memory_mib,
            request.extras,
            request.node_pool,
            _expected_runtime(request, learned_seconds),
            None if row["attempt"] else _seconds(row["created_at"]),  # waiting_since
            _seconds(row["not_before"]),
            data.is_waiting,
            data.progress,
            bool(volume_wait),
            volume_wait,
            state == lifecycle.STOPPING,
            details.get("by_job") if is_waiting else None,
            details.get("by_project") if is_waiting else None,
            details.get("kind", "") if is_waiting else "",
            _seconds(row["started_at"]) if state in _HAVE_RUN else None,
            row["progress"].get("checkpoint_at"),
            () if is_queued else placements,
            placements_from_lists(details["promised"]) if is_queued and "promised" in details else (),
            refused,  # avoid
            data.locations,
            data.fillable,
            data.copies,
            (),  # missing
            "",  # workers_for
            row["name"],
        )

    def _read(self, spec: Mapping[str, Any], kind: str) -> _Request:
        about = KINDS[kind]
        bounds = about.bounds(spec)
        request = self._requests[id(spec), kind] = _Request(
            spec=spec,
            min_pods=None if bounds is None else bounds[0],
            sizes=about.sizes(spec),
            milli_cpus=spec["cpus"],
            memory_mib=spec["memory_mib"],
            extras=_extras(spec.get("extra_resources", {})),
            node_pool=spec["node_pool"],
            declared_seconds=spec.get("expected_runtime_seconds"),
            most_seconds=spec.get("max_runtime_seconds"),
        )
        return request


def _rank(row: Mapping[str, Any], *, is_preempted: bool) -> int:
    """Return the job's rank in the queue: the order of submission, or with REQUEUE_RANK_SECONDS a time, which is
    later for a preempted job."""
    if settings.REQUEUE_RANK_SECONDS is None:
        return int(row["submit_rank"])
    submitted = rank_at(row["created_at"].timestamp())
    if not is_preempted:
        return submitted
    return max(submitted, rank_at(row["queued_at"].timestamp() + settings.REQUEUE_RANK_SECONDS))


def _expected_runtime(request: _Request, learned_seconds: int | None) -> int | None:
    """Return the declared run time in seconds, else the learned one, else the job's time limit; never more than that
    limit. None if all three are unknown."""
    expected, most = request.declared_seconds or learned_seconds, request.most_seconds
    if expected is None or most is None:
        return most if expected is None else expected
    return min(expected, most)


def _extras(wanted: Mapping[str, str]) -> Extras:
    return tuple((name, _pieces(wanted[name])) for name in sorted(wanted))


def _pieces(quantity: str) -> int:
    """Return the quantity as a number of pieces. An invalid one, which an older version stored, counts as more than
    any node has, so that only its own job waits."""
    try:
        return min(quantities.pieces(quantity), quantities.MOST)
    except ValueError:
        return quantities.MOST


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
