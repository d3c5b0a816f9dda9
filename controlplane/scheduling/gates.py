"""The two bounds that idle GPUs do not lift: a project's limit, and the quota for work that cannot be preempted."""

from __future__ import annotations

from controlplane.scheduling import reasons
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.spec import Refusal


def over_limit(item: Waiting, *, is_held: bool = False) -> Refusal | None:
    """Whether the job would carry its project, or its department, above the limit.

    With `is_held`, jobs that are stopping count as well: their GPUs are not proven free yet.
    """
    for account in item.account.line():
        holds = account.held if is_held else account.allocated
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
    """Whether a job that cannot be preempted would carry such work above the quota."""
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
