"""Rules that apply even while GPUs are idle: limits, the quota of non-preemptible jobs, back-off, data and volumes
that are not ready."""

from __future__ import annotations

from controlplane.scheduling import reasons
from controlplane.scheduling.feasibility import Refusal
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.view import ClusterView, JobView


def over_limit(item: Waiting, *, is_held: bool = False) -> Refusal | None:
    """Return a refusal if the job would take its project or department above the limit; None if not.

    GPUs that this cycle takes from the account for other projects still count. `is_held`: all stopping jobs count
    too, because their GPUs are not proven free yet.
    """
    for account in item.account.line():
        holds = account.held if is_held else account.allocated + account.reclaimed
        if account.limit is not None and item.milli_gpus and holds + item.milli_gpus > account.limit:
            return Refusal(
                reasons.OVER_GPU_LIMIT,
                {
                    "project": account.name,
                    "allocated_milli_gpus": holds,
                    "limit_milli_gpus": account.limit,
                    "request_milli_gpus": item.milli_gpus,
                },
            )
    return None


def over_quota(item: Waiting, *, is_held: bool = False) -> Refusal | None:
    """Return a refusal if a non-preemptible job would take the non-preemptible GPUs of its project or department
    above the quota; None if not. `is_held`: stopping jobs count too."""
    if item.job.is_preemptible or not item.milli_gpus:
        return None
    for account in item.account.line():
        fixed = account.held_fixed if is_held else account.fixed
        if account.quota is not None and fixed + item.milli_gpus > account.quota:
            return Refusal(
                reasons.INTERACTIVE_OVER_QUOTA,
                {
                    "project": account.name,
                    "non_preemptible_milli_gpus": fixed,
                    "quota_milli_gpus": account.quota,
                    "request_milli_gpus": item.milli_gpus,
                },
            )
    return None


def exceeds_limits(item: Waiting) -> bool:
    """Return whether the job would exceed a GPU limit of its project or department, or, if not preemptible, their
    quota."""
    return over_limit(item) is not None or over_quota(item) is not None


def must_wait_for_limits(item: Waiting) -> bool:
    """Return whether limits or quotas make the job wait until stopping jobs of its project or department have ended."""
    return over_limit(item, is_held=True) is not None or over_quota(item, is_held=True) is not None


def not_ready(job: JobView) -> Refusal | None:
    """Return a refusal while the job's data or volume is not ready; None once it is."""
    if job.is_waiting_for_data:
        return Refusal(reasons.WAITING_FOR_DATA, dict(job.data_progress))
    if job.is_waiting_for_volume:
        return Refusal(reasons.WAITING_FOR_VOLUME, dict(job.volume_wait))
    return None


def is_backing_off(job: JobView, now: int) -> bool:
    """Return whether the job's back-off has not ended at `now` (Unix seconds)."""
    return job.not_before is not None and job.not_before > now


def postponed(job: JobView, view: ClusterView) -> Refusal | None:
    """Return a refusal while the job must not be tried again: during its back-off, and while the engine is
    unreachable; else None."""
    if is_backing_off(job, view.now):
        return Refusal(reasons.BACKING_OFF, {"not_before": job.not_before})
    if not view.is_engine_reachable:
        return Refusal(reasons.ENGINE_UNREACHABLE, {"cluster": view.name})
    return None
