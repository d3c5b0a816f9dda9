"""Missing workers of running elastic jobs, inside their project's quota: they queue like jobs.

`with_missing_workers` adds one queued job for each group of missing workers to the view (`JobView.workers_for`);
`growth_of` converts what these get in the plan back into workers. Rules: README.md, "Missing workers".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.mentions import Sees, mention, seen_by
from controlplane.scheduling.plan import Details, Growth, Preempt
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement

# The key of a running job's details that holds what a plan promises to its missing workers.
AWAITED = "awaited_workers"
_missing = attrgetter("missing")
# Added to a rank: greater than every rank of a queued job, which may be a time in microseconds.
_AFTER_ALL = 1 << 60


def lacks_workers(jobs: Iterable[JobView]) -> bool:
    """Return whether any of these jobs has missing workers that it can take now."""
    return any(map(_missing, jobs))


def with_missing_workers(view: ClusterView) -> ClusterView:
    """Return the view with the missing workers of running jobs as queued jobs; the same view if there are none.

    A job without a promise of its own adds none while a queued job of higher priority in its project has a promise:
    it may have shrunk for that job, and would take the capacity back.
    """
    if not lacks_workers(view.jobs):
        return view
    promised = _promised_priorities(view)
    more = tuple(
        gang
        for job in view.jobs
        if job.missing and job.state == "active" and not job.is_stopping
        if job.promised or promised.get(job.project, job.priority) <= job.priority
        for gang in _gangs(job)
    )
    return replace(view, jobs=(*view.jobs, *more)) if more else view


def _promised_priorities(view: ClusterView) -> Mapping[str, int]:
    """Return, by project, the highest priority of its queued jobs that have a promise."""
    found: dict[str, int] = {}
    for job in view.jobs:
        if job.state == "queued" and job.promised:
            found[job.project] = max(job.priority, found.get(job.project, job.priority))
    return found


def _gangs(job: JobView) -> Iterator[JobView]:
    first = 0
    for index, pods in enumerate(job.missing):
        promised = job.promised[first : first + pods]
        first += pods
        yield replace(
            job,
            id=f"{job.id}+{index:05}",
            # After the queued jobs of its project, which come before workers beyond another job's minimum.
            submit_rank=_AFTER_ALL + job.submit_rank,
            state="queued",
            pods=pods,
            min_pods=None,
            sizes=(),
            missing=(),
            placements=(),
            # Ranks count from 0 in each gang.
            promised=_ranked(promised) if len(promised) == pods else (),
            started_at=None,
            last_checkpoint_at=None,
            expected_runtime_seconds=None,
            workers_for=job.id,
        )


def growth_of(state: CycleState) -> tuple[Growth, ...]:
    """Return the workers that running jobs get in this plan, one entry per job. All workers of a job start together:
    they count as promised while one of them waits for stopping jobs."""
    placed: dict[str, list[str]] = {}
    for name in (*state.starts, *state.promises):
        if running := state.jobs[name].workers_for:
            placed.setdefault(running, []).append(name)
    return tuple(_growth(state, state.jobs[name], sorted(gangs)) for name, gangs in placed.items())


def _growth(state: CycleState, job: JobView, gangs: list[str]) -> Growth:
    placements: list[PodPlacement] = []
    stopping: dict[str, JobView] = {}
    for name in gangs:
        if name in state.starts:
            placements += state.starts[name].placements
        else:
            item, promised = state.promises[name]
            placements += promised
            stopping |= {one.id: one for one in state.stopping_for(item, promised)}
    mentions = tuple(mention(one.project, one.id, one.label) for one in stopping.values())
    is_promised = any(name in state.promises for name in gangs)
    return Growth(job.id, job.project, _ranked(placements), is_promised, mentions)


def for_growing_job(preempt: Preempt, beneficiary: JobView) -> Preempt:
    """Return the preemption. If its beneficiary stands for missing workers, the running job that lacks them takes its
    place."""
    return replace(preempt, beneficiary=beneficiary.workers_for) if beneficiary.workers_for else preempt


def _ranked(placements: tuple[PodPlacement, ...] | list[PodPlacement]) -> tuple[PodPlacement, ...]:
    return tuple(replace(one, rank=rank) for rank, one in enumerate(placements))


def awaited_sentence(awaited: Details, sees: Sees) -> str:
    """Return the sentence that says why missing workers of a running job wait. `awaited`: `workers` that wait,
    `asked` in all, and the `stopping` jobs; `sees`: which jobs the reader may see."""
    stopping = seen_by({"stopping": awaited["stopping"]}, sees)["stopping"]
    workers, asked = awaited["workers"], awaited["asked"]
    waits = "waits" if workers == 1 else "wait"
    freed = f": {_names(stopping)}" if stopping else ""
    return f"{workers} of its {asked} workers {waits} for room inside the quota{freed}."


def _names(stopping: Sequence[Details]) -> str:
    shrinking = [one for one in stopping if one.get("is_shrinking")]
    others = [one for one in stopping if not one.get("is_shrinking")]
    parts = [
        f"{_listed(others)} stopped" if others else "",
        f"{_listed(shrinking)} shrunk" if shrinking else "",
    ]
    return " and ".join(part for part in parts if part)


def _listed(jobs: Sequence[Details]) -> str:
    names = [str(one["name"]) for one in jobs if one.get("name")]
    hidden = len(jobs) - len(names)
    if hidden:
        names.append(f"{hidden} {'job' if hidden == 1 else 'jobs'} of other projects")
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{text} {'is' if len(jobs) == 1 else 'are'}"
