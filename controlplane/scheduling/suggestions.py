"""Find the smallest changes with which a held job would start, by deciding again on changed views.

Called when a user asks why a job waits, never in a scheduling cycle: each suggestion costs one decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from controlplane.scheduling import reasons
from controlplane.scheduling.course import never
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.plan import Hold, Plan
from controlplane.scheduling.view import ClusterView, JobView

Fix = dict[str, Any]
Candidate = tuple[Fix, ClusterView]
SHOWN = 3


def suggest(view: ClusterView, job_id: str, is_over: Callable[[], bool] = never) -> list[Fix]:
    """Return up to three changes, the smallest first, with which the job would start, at once or after named jobs
    have stopped.

    Each has a `change`, its numbers, a `text` that completes "It would start if ...", and `stopping`: the jobs that
    are stopped first, as mentions. [] for a job that is not held, or that waits for something other than capacity.
    Once `is_over()` returns True, no further change is tried.
    """
    hold = next((hold for hold in decide(view).holds if hold.job == job_id), None)
    job = next((job for job in view.jobs if job.id == job_id), None)
    if hold is None or job is None or hold.is_promised:
        return []
    code = hold.details.get("blocked_by", hold.reason)
    found: list[Fix] = []
    for fix, changed in _CANDIDATES.get(code, _none)(view, job, hold):
        if is_over():
            break
        stopping = _stopped_first(decide(changed), job_id)
        if stopping is not None:
            found.append({**fix, "text": fix["text"] + _when(stopping), "stopping": stopping})
        if len(found) == SHOWN:
            break
    return found


def _stopped_first(plan: Plan, job_id: str) -> list[dict[str, Any]] | None:
    """Return the jobs that are stopped before the job starts, as mentions; [] if it starts at once, None if it does
    not fit in this plan."""
    if any(start.job == job_id for start in plan.starts):
        return []
    hold = next((hold for hold in plan.holds if hold.job == job_id and hold.is_promised), None)
    return None if hold is None else list(hold.details["stopping"])


def _when(stopping: list[dict[str, Any]]) -> str:
    """Return the phrase on how many jobs stop first; "" for none. It has no names, because the reader may not see
    those jobs."""
    if not stopping:
        return ""
    return f", when {len(stopping)} job{' has' if len(stopping) == 1 else 's have'} stopped"


def _none(view: ClusterView, job: JobView, hold: Hold) -> Iterator[Candidate]:
    return iter(())


def _ask_less(view: ClusterView, job: JobView, hold: Hold) -> Iterator[Candidate]:
    fits, largest = hold.details.get("pods_that_fit", 0), hold.details.get("largest_free_milli_gpus", 0)
    if job.fewest_pods > 1 and 0 < fits < job.fewest_pods:
        is_elastic = job.min_pods is not None
        verb = "could run with" if is_elastic else "asked for"
        less = {"min_pods": fits} if is_elastic else {"pods": fits}
        text = f"it {verb} {fits} worker{'' if fits == 1 else 's'}"
        yield {"change": "ask_for_pods", "pods": fits, "text": text}, _with_job(view, job, **less)
    if job.fewest_pods == 1 and 0 < largest < job.milli_gpus:
        yield _ask_for_gpus(view, job, largest)


def _ask_for_gpus(view: ClusterView, job: JobView, milli_gpus: int) -> Candidate:
    text = f"it asked for {reasons.count_gpus(milli_gpus)}"
    fix = {"change": "ask_for_gpus", "milli_gpus": milli_gpus, "text": text}
    return fix, _with_job(view, job, milli_gpus=milli_gpus)


def _raise_quota(view: ClusterView, job: JobView, hold: Hold) -> Iterator[Candidate]:
    """Yield the smallest quota that contains the job: with it the project may reclaim what other projects hold above
    theirs. Yields nothing if the quota is unlimited or large enough already."""
    project = next(project for project in view.projects if project.name == job.project)
    details = hold.details
    held = details["allocated_milli_gpus"] if job.is_preemptible else details["non_preemptible_milli_gpus"]
    quota = held + details["request_milli_gpus"]
    if project.quota_milli_gpus is not None and quota > project.quota_milli_gpus:
        text = f"the quota of {project.name} were {reasons.gpus(quota)}"
        fix = {
            "change": "raise_quota",
            "project": project.name,
            "quota_milli_gpus": quota,
            "text": text,
        }
        yield fix, _with_project(view, project.name, quota_milli_gpus=quota)


def _raise_limit(view: ClusterView, job: JobView, hold: Hold) -> Iterator[Candidate]:
    name = hold.details["project"]
    limit = hold.details["allocated_milli_gpus"] + hold.details["request_milli_gpus"]
    text = f"the limit of {name} were {reasons.gpus(limit)}"
    fix = {"change": "raise_limit", "project": name, "limit_milli_gpus": limit, "text": text}
    yield fix, _with_project(view, name, limit_milli_gpus=limit)


def _over_share(view: ClusterView, job: JobView, hold: Hold) -> Iterator[Candidate]:
    yield from _ask_less(view, job, hold)
    yield from _raise_quota(view, job, hold)


def _interactive(view: ClusterView, job: JobView, hold: Hold) -> Iterator[Candidate]:
    fix = {"change": "make_preemptible", "text": "it could be preempted"}
    yield fix, _with_job(view, job, is_preemptible=True)
    left = hold.details["quota_milli_gpus"] - hold.details["non_preemptible_milli_gpus"]
    if job.fewest_pods == 1 and 0 < left < job.milli_gpus:
        whole = left if left < reasons.WHOLE_GPU else left // reasons.WHOLE_GPU * reasons.WHOLE_GPU
        yield _ask_for_gpus(view, job, whole)
    if hold.details["project"] == job.project:
        yield from _raise_quota(view, job, hold)


def _with_job(view: ClusterView, job: JobView, **changes: Any) -> ClusterView:
    changed = replace(job, **changes)
    return replace(view, jobs=tuple(changed if one.id == job.id else one for one in view.jobs))


def _with_project(view: ClusterView, name: str, **changes: Any) -> ClusterView:
    return replace(
        view,
        projects=tuple(replace(one, **changes) if one.name == name else one for one in view.projects),
        departments=tuple(replace(one, **changes) if one.name == name else one for one in view.departments),
    )


_CANDIDATES: Mapping[str, Callable[[ClusterView, JobView, Hold], Iterator[Candidate]]] = {
    reasons.OVER_GPU_LIMIT: _raise_limit,
    reasons.INTERACTIVE_OVER_QUOTA: _interactive,
    reasons.GANG_DOES_NOT_FIT: _over_share,
    reasons.FRAGMENTED: _ask_less,
    reasons.OVER_FAIR_SHARE: _over_share,
    reasons.CLUSTER_FULL: _ask_less,
}
