"""Properties that every plan must have, checked by brute force on small clusters. Each function returns whether
the plan of a view has its property; `violations` names those that it lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.expected_ends import expected_end, rounded_up
from controlplane.scheduling.feasibility import FeasibilityCheck
from controlplane.scheduling.order import job_key
from controlplane.scheduling.plan import Hold, Plan, Preempt
from controlplane.scheduling.view import (
    ClusterView,
    DepartmentView,
    JobView,
    ProjectView,
    placements_from_lists,
)
from tests.pure.scheduling.brute import Job, Rooms, fit_together, take_together
from tests.pure.scheduling.builders import GROWING, apply
from tests.pure.scheduling.gang_place import gang_place
from tests.pure.scheduling.plan_sums import (
    all_newcomers,
    brute_job,
    common_accounts,
    holds,
    members_of,
    milli_gpus_of,
    project_of,
    promised_to,
    running_sums,
    staying,
    sums_with_promises,
)

MOST_CYCLES = 5


def violations(view: ClusterView) -> list[str]:
    """Return the names of the properties that the plan of this view violates."""
    plan = decide(view)
    return [name for name, holds in PROPERTIES.items() if not holds(view, plan)]


def settles(view: ClusterView, plan: Plan) -> bool:
    """Return whether nothing changes any more within five cycles, six for jobs of three priorities; ten if queued
    elastic jobs will request more workers. A preemption for an aged gang starts the count again, since projects
    that lost GPUs to it reclaim others."""
    is_elastic = any(job.state == "queued" and job.min_pods is not None for job in view.jobs)
    # What one priority stops may stop a lower one, or reclaim from others: each time a cycle to stop and one to start.
    most = max(MOST_CYCLES, 2 * len({job.priority for job in view.jobs}))
    most = 2 * MOST_CYCLES if view.name == GROWING and is_elastic else most
    left = most
    while left and _changes(plan):
        left = most if any(one.kind == "ageing" for one in plan.preempts) else left - 1
        view = apply(view, plan)
        plan = decide(view)
    return not _changes(plan)


def _changes(plan: Plan) -> bool:
    return bool(plan.starts or plan.preempts or plan.growth)


def nothing_starts_while_victims_stop(view: ClusterView, plan: Plan) -> bool:
    """Return whether the next cycle, while the victims of the plan are stopping, starts nothing: their capacity
    is promised, and the rest was given out."""
    if not plan.preempts:
        return True
    later = decide(apply(view, plan, is_gone=False))
    return not later.starts and all(one.is_promised for one in later.growth)


def in_quota_keeps(view: ClusterView, plan: Plan) -> bool:
    """Return whether each project that loses jobs by reclaim is above its quota until it loses the last of them,
    the largest."""
    jobs = {job.id: job for job in view.jobs}
    for project in view.projects:
        if project.quota_milli_gpus is None:
            continue
        taken = [
            milli_gpus_of(jobs[one.job])
            for one in plan.preempts
            if one.project == project.name and one.kind == "reclaim"
        ]
        lost_to_others = sum(taken) - max(taken, default=0)
        if taken and holds(view, project.name) - lost_to_others <= project.quota_milli_gpus:
            return False
    return True


def in_quota_is_not_over_share(view: ClusterView, plan: Plan) -> bool:
    """Return whether no job inside its project's quota waits for the reason `over_fair_share`."""
    for hold in plan.holds:
        if hold.reason == "over_fair_share" or hold.details.get("blocked_by") == "over_fair_share":
            quota = project_of(view, hold.project).quota_milli_gpus
            wanted = hold.details["request_milli_gpus"]
            if quota is None or hold.details["allocated_milli_gpus"] + wanted <= quota:
                return False
    return True


def limits_hold(view: ClusterView, plan: Plan) -> bool:
    """Return whether running, started and promised jobs stay inside limits, and those that cannot be preempted
    inside quotas."""
    for project in (*view.projects, *view.departments):
        members = members_of(view, project.name)
        before, after = running_sums(view, plan, members), sums_with_promises(view, plan, members)
        jobs = {job.id: job for job in view.jobs}
        new = [one.job for one in plan.starts] + [one.job for one in plan.holds if one.is_promised]
        new += [one.job for one in plan.growth]
        added = any(jobs[name].project in members and jobs[name].milli_gpus for name in new)
        begun = (*plan.starts, *(one for one in plan.growth if not one.is_promised))
        started = any(one.project in members and jobs[one.job].milli_gpus for one in begun)
        limit, quota = project.limit_milli_gpus, project.quota_milli_gpus
        if limit is not None and ((added and sum(after) > limit) or (started and sum(before) > limit)):
            return False
        if added and quota is not None and after[1] > quota and _newly_fixed(view, plan, members):
            return False
    return True


def _newly_fixed(view: ClusterView, plan: Plan, members: set[str]) -> bool:
    jobs = {job.id: job for job in view.jobs}
    new = [start.job for start in plan.starts] + [hold.job for hold in plan.holds if hold.is_promised]
    new += [one.job for one in plan.growth]
    return any(
        not jobs[job].is_preemptible and jobs[job].project in members and jobs[job].milli_gpus for job in new
    )


def victims_are_needed(view: ClusterView, plan: Plan) -> bool:
    """Return whether each victim is needed: if it stayed, the newcomers would not all fit anywhere, or a limit or
    quota would be exceeded. Newcomers that must not delay the gang with the reservation may fit only beside its
    place."""
    newcomers, place = all_newcomers(view, plan), gang_place(view, plan) if plan.preempts else None
    for preempt in plan.preempts:
        if _leaves_what_is_needed(view, plan, preempt):
            continue
        gone = {one.job for one in plan.preempts} - {preempt.job}
        rooms = Rooms(
            view,
            [
                job
                for job in view.jobs
                if job.state == "active" and not job.is_stopping and job.id not in gone
            ],
        )
        if fit_together(newcomers, rooms, None if place is None else place.without(gone)):
            return False
    return True


def each_newcomer_needs_its_victims(view: ClusterView, plan: Plan) -> bool:
    """Return whether each newcomer needs each of its own victims: if it stayed, and all others are placed as
    planned, the newcomer would not fit. One that must not delay the gang with the reservation may fit only beside
    its place."""
    placed = {start.job: start.placements for start in plan.starts}
    placed |= {hold.job: promised_to(hold) for hold in plan.holds if hold.is_promised}
    placed |= {one.job: one.placements for one in plan.growth}
    wanted: dict[str, list[Job]] = {}
    for job in all_newcomers(view, plan):
        wanted.setdefault(job.name, []).append(job)
    place = gang_place(view, plan) if plan.preempts else None
    for preempt in plan.preempts:
        if _leaves_what_is_needed(view, plan, preempt):
            continue
        gone = {one.job for one in plan.preempts} - {preempt.job}
        rooms, later = Rooms(view, staying(view, gone)), None if place is None else place.without(gone)
        others = {name: pods for name, pods in placed.items() if name != preempt.beneficiary}
        if take_together(view, others, rooms, later) and fit_together(
            wanted[preempt.beneficiary], rooms, later
        ):
            return False
    return True


def _leaves_what_is_needed(view: ClusterView, plan: Plan, preempt: Preempt) -> bool:
    """Return whether a victim would, if it stayed, take its project or department above the limit, or its project
    above the quota up to which it reclaims from others. Only accounts that are also the beneficiary's count."""
    jobs = {job.id: job for job in view.jobs}
    own, kept = project_of(view, preempt.project), milli_gpus_of(jobs[preempt.job])
    for account in common_accounts(view, preempt):
        held = sum(sums_with_promises(view, plan, members_of(view, account.name)))
        if account.limit_milli_gpus is not None and held + kept > account.limit_milli_gpus:
            return True
    is_reclaimed_too = preempt.kind == "preempt" and any(
        one.kind == "reclaim" and one.beneficiary == preempt.beneficiary for one in plan.preempts
    )
    held = sum(sums_with_promises(view, plan, {own.name}))
    return is_reclaimed_too and own.quota_milli_gpus is not None and held + kept > own.quota_milli_gpus


def nothing_idle_is_kept_back(view: ClusterView, plan: Plan) -> bool:
    """Return whether no held job fits into capacity that is free, not promised, and not kept for an older gang
    (see who_waits_for_a_gang_would_delay_it)."""
    by_id = {job.id: job for job in view.jobs}
    rooms = Rooms(view, [job for job in view.jobs if job.state == "active"])
    for start in plan.starts:
        assert rooms.take_all(by_id[start.job], start.placements), "double booked"
    victims = {one.job for one in plan.preempts}
    soon = Rooms(
        view,
        [job for job in view.jobs if job.state == "active" and not job.is_stopping and job.id not in victims],
    )
    for start in plan.starts:
        soon.take_all(by_id[start.job], start.placements)
    for hold in plan.holds:
        if hold.is_promised:
            assert soon.take_all(by_id[hold.job], promised_to(hold)), "promised twice"
    for growth in plan.growth:
        assert soon.take_all(by_id[growth.job], growth.placements), "promised twice"
        assert growth.is_promised or rooms.take_all(by_id[growth.job], growth.placements), "double booked"
    free = rooms.at_most(soon)
    check = FeasibilityCheck(view)
    return not any(
        _may_start(view, plan, by_id[hold.job], hold)
        and fit_together([brute_job(check, by_id[hold.job])], free)
        for hold in plan.holds
        if not hold.is_promised and hold.queue_position is not None and not _is_bound(hold)
    )


def _is_bound(hold: Hold) -> bool:
    """Return whether the job waits because the reservation of another job, a gang, binds it."""
    return hold.details.keys() & {"reserved_at", "reserved_for", "reserved"} == {
        "reserved_at",
        "reserved_for",
    }


def who_waits_for_a_gang_would_delay_it(view: ClusterView, plan: Plan) -> bool:
    """Return whether each job that the reservation of a gang binds comes after it in their project, or is above its own
    project's quota, and would run beyond the gang's start. False also if two gangs have a reservation."""
    jobs, holds = {job.id: job for job in view.jobs}, {hold.job: hold for hold in plan.holds}
    if sum("reserved" in hold.details for hold in plan.holds) > 1:
        return False
    for hold in filter(_is_bound, plan.holds):
        gang, job = jobs[hold.details["reserved_for"]], jobs[hold.job]
        expected = job.expected_runtime_seconds
        is_long = (
            expected is None or view.now + (rounded_up(expected) or 0) > hold.details["reserved_at"] - 600
        )
        is_later = job_key(job) > job_key(gang)
        is_bound = is_later if job.project == gang.project else _is_above_quota(hold)
        if not (is_long and is_bound and "reserved" in holds[gang.id].details):
            return False
    return True


def _is_above_quota(hold: Hold) -> bool:
    quota = hold.details["quota_milli_gpus"]
    return (
        quota is not None
        and hold.details["allocated_milli_gpus"] + hold.details["request_milli_gpus"] > quota
    )


def the_reservation_is_kept(view: ClusterView, plan: Plan) -> bool:
    """Return whether at the reserved time the gang fits at its place, beside jobs that still run then, and jobs
    of this plan that must respect it."""
    jobs, gone = {job.id: job for job in view.jobs}, {one.job for one in plan.preempts}
    for hold in plan.holds:
        if "reserved" not in hold.details:
            continue
        at, gang = hold.details["reserved_at"], jobs[hold.job]
        placed = {start.job: start.placements for start in plan.starts}
        placed |= {one.job: promised_to(one) for one in plan.holds if one.is_promised}
        placed |= {one.job: one.placements for one in plan.growth}
        rooms = Rooms(
            view, [job for job in staying(view, gone) if (expected_end(job, view.now) or at + 1) > at]
        )
        for name, placements in placed.items():
            job = jobs[name]
            is_own = job.project == gang.project and not _is_larger_than_share(hold)
            runs_on = job.expected_runtime_seconds is None or view.now + job.expected_runtime_seconds > at
            if is_own and job_key(job) > job_key(gang) and runs_on:
                rooms.take_all(job, placements)
        if not rooms.take_all(gang, placements_from_lists(hold.details["reserved"])):
            return False
    return True


def _is_larger_than_share(hold: Hold) -> bool:
    numbers, quota = hold.details, hold.details["quota_milli_gpus"]
    return quota is not None and numbers["request_milli_gpus"] > max(quota, numbers["fair_share_milli_gpus"])


def _may_start(view: ClusterView, plan: Plan, job: JobView, hold: Hold) -> bool:
    if job.is_waiting_for_data or job.is_waiting_for_volume or (job.not_before or 0) > view.now:
        return False
    wanted = hold.details["request_milli_gpus"]
    if not wanted:
        return True
    projects = [
        item for item in (*view.projects, *view.departments) if job.project in members_of(view, item.name)
    ]
    for project in projects:
        members = members_of(view, project.name)
        before, after = running_sums(view, plan, members), sums_with_promises(view, plan, members)
        limit, quota = project.limit_milli_gpus, project.quota_milli_gpus
        if limit is not None and max(sum(before), sum(after)) + wanted > limit:
            return False
        if not job.is_preemptible and quota is not None and max(before[1], after[1]) + wanted > quota:
            return False
    return True


def gangs_are_whole(view: ClusterView, plan: Plan) -> bool:
    """Return whether each start has the ranks 0, 1, ... and a number of pods that the job allows."""
    jobs = {job.id: job for job in view.jobs}
    placed = [(start.job, start.placements) for start in plan.starts]
    placed += [(hold.job, promised_to(hold)) for hold in plan.holds if hold.is_promised]
    return all(
        [pod.rank for pod in placements] == list(range(len(placements)))
        and jobs[name].fewest_pods <= len(placements) <= jobs[name].pods
        for name, placements in placed
    )


def order_and_ids_do_not_matter(view: ClusterView, plan: Plan) -> bool:
    """Return whether the plan is the same if all tuples are reversed and the jobs have other ids."""
    names = {job.id: f"{index:02}" for index, job in enumerate(reversed(view.jobs))}
    jobs = tuple(
        replace(job, id=names[job.id], name=job.name or job.id)
        for job in sorted(view.jobs, key=lambda job: -job.submit_rank)
    )
    other = decide(
        replace(
            view,
            jobs=jobs,
            nodes=view.nodes[::-1],
            projects=view.projects[::-1],
            departments=view.departments[::-1],
        )
    )
    same = {name: old for old, name in names.items()}
    return _gist(plan, {job.id: job.id for job in view.jobs}) == _gist(other, same)


def _gist(plan: Plan, names: Mapping[str, str]) -> tuple[object, ...]:
    return (
        [(names[one.job], one.placements) for one in plan.starts],
        sorted((names[one.job], names[one.beneficiary], one.kind) for one in plan.preempts),
        [(names[one.job], one.reason, promised_to(one), one.queue_position) for one in plan.holds],
        sorted((share.project, share.fair_share_milli_gpus) for share in plan.shares),
        sorted((names[one.job], one.placements, one.is_promised) for one in plan.growth),
    )


def nothing_is_double_booked(view: ClusterView, plan: Plan) -> bool:
    """Return whether no device, CPU or other resource is given out beyond its size."""
    by_id = {job.id: job for job in view.jobs}
    rooms = Rooms(view, [job for job in view.jobs if job.state == "active"])
    begun = (*plan.starts, *(one for one in plan.growth if not one.is_promised))
    return all(rooms.take_all(by_id[one.job], one.placements) for one in begun)


def every_queued_job_is_answered_once(view: ClusterView, plan: Plan) -> bool:
    """Return whether each queued job is started or held, once, and each preempted job was running, preemptible,
    and not stopping."""
    answered = Counter(one.job for one in (*plan.starts, *plan.holds))
    queued = Counter(job.id for job in view.jobs if job.state == "queued")
    jobs = {job.id: job for job in view.jobs}
    return answered == queued and all(
        jobs[one.job].state == "active" and jobs[one.job].is_preemptible and not jobs[one.job].is_stopping
        for one in plan.preempts
    )


def who_waits_for_room_sees_what_is_stopping(view: ClusterView, plan: Plan) -> bool:
    """Return whether each job with promised capacity is shown at least one job that is stopping for it."""
    stopping = {job.id for job in view.jobs if job.is_stopping} | {one.job for one in plan.preempts}
    return all(
        hold.details.get("stopping") and {one["job"] for one in hold.details["stopping"]} <= stopping
        for hold in plan.holds
        if hold.reason == "waiting_for_reclaim"
    ) and all(
        one.stopping and {each["job"] for each in one.stopping} <= stopping
        for one in plan.growth
        if one.is_promised
    )


def asked_workers_in_quota_do_not_wait(view: ClusterView, plan: Plan) -> bool:
    """Return whether the missing workers of running jobs inside quota and limit wait only if they fit neither
    into free capacity nor into that of any one job that another project holds above its quota. Projects whose own
    gang has the reservation are left out."""
    served = {one.job: len(one.placements) for one in plan.growth}
    gone = {one.job for one in plan.preempts}
    own = {hold.project for hold in plan.holds if "reserved" in hold.details}
    for job in view.jobs:
        if not job.missing or job.is_stopping or job.id in gone or job.project in own:
            continue
        sizes = [
            pods for at, pods in enumerate(job.missing) if sum(job.missing[: at + 1]) > served.get(job.id, 0)
        ]
        if sizes and _is_in_quota_with(view, plan, job, sizes[0]):
            one = replace(
                brute_job(FeasibilityCheck(view), replace(job, pods=sizes[0], min_pods=None)), name=""
            )
            # A larger job could take more from inside a quota than the workers gain.
            others = [
                other
                for other in staying(view, gone)
                if _may_give(view, plan, job, other) and milli_gpus_of(other) <= sizes[0] * job.milli_gpus
            ]
            if any(
                fit_together([one], _after(view, plan, gone | freed))
                for freed in [set(), *({o.id} for o in others)]
            ):
                return False
    return True


def _is_in_quota_with(view: ClusterView, plan: Plan, job: JobView, pods: int) -> bool:
    """Return whether the job's project and department stay inside quotas and limits with `pods` more pods of the
    job."""
    added = pods * job.milli_gpus
    for account in _line(view, job.project):
        members = members_of(view, account.name)
        # What is taken from the project in this plan counts under its limit until the victims are final.
        both = sums_with_promises(view, plan, members), running_sums(view, plan, members)
        holds, fixed = max(map(sum, both)), max(one[1] for one in both)
        bounds = [one for one in (account.quota_milli_gpus, account.limit_milli_gpus) if one is not None]
        if any(holds + added > one for one in bounds) or (
            not job.is_preemptible and fixed + added > min(bounds)
        ):
            return False
    return True


def _may_give(view: ClusterView, plan: Plan, job: JobView, other: JobView) -> bool:
    """Return whether `other` may be preempted: its project, and its department if that is another one, hold as
    much above their quotas as the job holds, in this plan."""
    if other.project == job.project or not other.is_preemptible or not milli_gpus_of(other):
        return False
    gone, own = {one.job for one in plan.preempts}, {one.name for one in _line(view, job.project)}
    for account in _line(view, other.project):
        members, quota = members_of(view, account.name), account.quota_milli_gpus
        runs = sum(milli_gpus_of(one) for one in staying(view, gone) if one.project in members)
        if account.name not in own and (quota is None or runs - quota < milli_gpus_of(other)):
            return False
    return not any(one.job == other.id for one in plan.growth)


def _line(view: ClusterView, name: str) -> list[ProjectView | DepartmentView]:
    project = project_of(view, name)
    return [project, *(one for one in view.departments if one.name == project.department)]


def _after(view: ClusterView, plan: Plan, gone: set[str]) -> Rooms:
    """Return the free capacity once the stopping jobs and `gone` (ids) have ended and the plan is carried out."""
    jobs, rooms = {job.id: job for job in view.jobs}, Rooms(view, staying(view, gone))
    placed = [(start.job, start.placements) for start in plan.starts]
    placed += [(hold.job, promised_to(hold)) for hold in plan.holds if hold.is_promised]
    placed += [(one.job, one.placements) for one in plan.growth]
    for name, placements in placed:
        rooms.take_all(jobs[name], placements)
    return rooms


PROPERTIES: Mapping[str, Callable[[ClusterView, Plan], bool]] = {
    function.__name__: function
    for function in (
        settles,
        nothing_starts_while_victims_stop,
        in_quota_keeps,
        in_quota_is_not_over_share,
        limits_hold,
        victims_are_needed,
        each_newcomer_needs_its_victims,
        nothing_idle_is_kept_back,
        who_waits_for_a_gang_would_delay_it,
        the_reservation_is_kept,
        gangs_are_whole,
        order_and_ids_do_not_matter,
        nothing_is_double_booked,
        every_queued_job_is_answered_once,
        who_waits_for_room_sees_what_is_stopping,
        asked_workers_in_quota_do_not_wait,
    )
}
