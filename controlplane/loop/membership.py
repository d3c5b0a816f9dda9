"""Maintain the memberships of elastic jobs: read what workers report, decide (jobs.kinds.membership), write,
deliver.

Every cycle derives everything from rows and the pods' own files, so the next cycle repairs a crash between any two
steps. A membership is delivered after its commit to every pod of the attempt, repeatedly until the pod's file
equals it.
"""

import json
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, NotVisible, reread
from controlplane.engines.base import MEMBERSHIP, Engine, EngineUnreachable, MembershipEngine
from controlplane.fields import LONGEST_MESSAGE
from controlplane.models import Cluster, Command, Event
from controlplane.models.prepared import prepared
from jobs import lifecycle
from jobs.command_kinds import POD, STOP_POD
from jobs.kinds import membership as rules
from jobs.kinds.membership import Answer, MembershipState, Operation, Worker, answer
from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job, Pod, ScaleOperation
from jobs.transitions import REMIND_AFTER_SECONDS, STOP_GRACE_SECONDS, job_event, move, stop_pods

logger = logging.getLogger(__name__)

ELASTIC_KINDS = [name for name, kind in KINDS.items() if kind.is_elastic]
# The causes of operations whose leaving workers are stopped if they do not acknowledge in time: their devices
# are owed to another project, or their node is taken away.
FORCED_CAUSES = ("reclaim", "spot")
# The message of growth that was ended for a reclaim. Such growth does not count as failed.
GIVEN_UP = "Other jobs reclaim its GPUs, so the new workers were stopped."
# The time in which a worker that has left must end by itself; then it is stopped, because it holds its devices until it
# ends.
LEAVE_SECONDS = timedelta(seconds=10)
# The upper bound of every reported count, because programs may write anything.
MOST = 2**31 - 1
# A worker's time per step is written when it changes by more than this fraction, so that not every report
# causes a write.
STEP_CHANGE = 0.2
# Causes of generations that begin before the previous generation could complete its step.
BREAKING = (rules.LOSS, rules.REFORM)


@dataclass(slots=True)
class Attended:
    """An elastic job's current attempt. `pods`: also those that have ended; `generation`: the current one, None before
    the first; `operation`: the open scale operation, None without one; `said`: the last report of each pod, by rank;
    `silent`: seconds since then."""

    job: Job
    pods: list[Pod]
    generation: Generation | None
    operation: ScaleOperation | None
    # The number of the newest generation whose cause is in BREAKING; 0 without one.
    loss: int = 0
    # Whether a member was lost and the job has not grown since.
    has_lost: bool = False
    said: dict[int, dict[str, Any]] = field(default_factory=dict)
    silent: dict[int, float] = field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        return ranks_of(self.generation)

    @property
    def asked_workers(self) -> int:
        """Return the number of workers that the open operation has still to add or, if negative, to remove; 0 without
        one, and once it has chosen who joins or leaves."""
        operation = self.operation
        if operation is None or operation.state != rules.PENDING or operation.joining or operation.leaving:
            return 0
        return operation.to_workers - len(self.members)


class ElasticJobs:
    """The running elastic jobs of a cluster during one cycle. `latest`: the result of the last `read`.

    The steps of a cycle change rows, so each step reads them again. If the first read finds no job, later ones are
    skipped: a job that starts later in the cycle has no members yet.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._has_none = cluster, False
        self.latest: list[Attended] = []

    def read(self) -> list[Attended]:
        """Read the jobs from their present rows, in a fixed number of queries, and return them."""
        self.latest = [] if self._has_none else _attended_jobs(self._cluster)
        self._has_none = not self.latest
        return self.latest

    def with_members(self) -> dict[str, Attended]:
        """Read the jobs again, and return those that have members, by id."""
        return {str(one.job.pk): one for one in self.read() if one.generation is not None}


def keep_memberships(cluster: Cluster, elastic: ElasticJobs, engine: Engine, now: datetime) -> None:
    """Advance the membership of every running elastic job of a cluster by one step. A failure of one job, which its
    pods' files can cause, is logged and does not stop the others."""
    _close_stale(cluster, now)
    if MEMBERSHIP not in engine.capabilities:
        return
    for attended in elastic.read():
        try:
            _keep(attended, cast(MembershipEngine, engine), now)
        except EngineUnreachable:
            # The cluster did not answer. The other jobs would each wait as long, so the next cycle continues.
            return
        except Exception:
            logger.exception("the membership of job %s could not be kept", attended.job.name)


def _attended_jobs(cluster: Cluster) -> list[Attended]:
    jobs = _working_jobs(cluster.pk)
    if not jobs:
        return []
    pods: dict[UUID, list[Pod]] = defaultdict(list)
    for pod in Pod.objects.filter(job__in=jobs, attempt__number=F("job__attempt")).order_by("rank"):
        pods[pod.job_id].append(pod)
    rows = _generations(jobs)
    newest = {row.attempt.job_id: row for row in rows}
    last = {row.attempt.job_id: row.cause for row in rows if row.cause in (rules.LOSS, rules.GROW)}
    losses = {row.attempt.job_id: row.number for row in rows if row.cause in BREAKING}
    is_open = ScaleOperation.objects.filter(job__in=jobs, state__in=rules.OPEN_STATES)
    operations = {operation.job_id: operation for operation in is_open}
    return [
        Attended(
            job,
            pods[job.pk],
            newest.get(job.pk),
            operations.get(job.pk),
            losses.get(job.pk, 0),
            last.get(job.pk) == rules.LOSS,
        )
        for job in jobs
    ]


@prepared
def _working_jobs(cluster: int) -> QuerySet[Job]:
    jobs = Job.objects.filter(project__cluster=cluster, kind__in=ELASTIC_KINDS)
    return jobs.filter(state__in=lifecycle.WORKING_STATES).select_related("project").order_by("pk")


def newest_generations(jobs: Sequence[Job]) -> dict[UUID, Generation]:
    """Return, by job, the newest generation of its current attempt; without jobs that have none yet."""
    return {row.attempt.job_id: row for row in _generations(jobs)} if jobs else {}


def _generations(jobs: Sequence[Job]) -> list[Generation]:
    rows = Generation.objects.filter(attempt__job__in=jobs, attempt__number=F("attempt__job__attempt"))
    return list(rows.select_related("attempt").order_by("number"))


def ranks_of(generation: Generation | None) -> tuple[int, ...]:
    """Return the ranks of a generation's members in the generation's order; () without a generation."""
    return () if generation is None else tuple(int(member["id"]) for member in generation.members)


def _close_stale(cluster: Cluster, now: datetime) -> None:
    """Close the open operations of jobs that have stopped or begun another attempt."""
    for operation in _stale(cluster.pk):
        with transaction.atomic():
            _finish(operation, rules.FAILED, f"The job is {operation.job.state}.", now)
            Event.objects.append([_scaled_event(operation)])


@prepared
def _stale(cluster: int) -> QuerySet[ScaleOperation]:
    is_open = ScaleOperation.objects.filter(job__project__cluster=cluster, state__in=rules.OPEN_STATES)
    stale = is_open.filter(~Q(job__state__in=lifecycle.WORKING_STATES) | ~Q(attempt=F("job__attempt")))
    return stale.select_related("job__project")


def _keep(attended: Attended, engine: MembershipEngine, now: datetime) -> None:
    _listen(attended, engine)
    _note_switched(attended, now)
    _note_epochs(attended)
    decided = answer(_membership_state(attended, now))
    if decided == Answer():
        return
    with transaction.atomic():
        if not lock_working(attended.job):
            return
        events = _carry_out(attended, decided, now)
        Event.objects.append(events)
    if decided.members is not None:
        _deliver(attended, engine)


def lock_working(job: Job) -> bool:
    """Lock the job's row until the transaction ends, and read it again. Return False if the job is gone, no longer
    starting or running, or in another attempt."""
    attempt = job.attempt
    try:
        reread(job, lock=True)
    except NotVisible:
        return False
    return job.state in lifecycle.WORKING_STATES and job.attempt == attempt


def _listen(attended: Attended, engine: MembershipEngine) -> None:
    """Send the current membership to the pods and read their reports. An unreadable report counts as none, because
    user programs can write the file."""
    text = _text(attended)
    for pod in attended.pods:
        # An ended pod gets no membership, but its last report may be new.
        report = engine.exchange(pod.name, text if pod.released_at is None else "")
        said = _parsed(report.text)
        if said:
            attended.said[pod.rank], attended.silent[pod.rank] = said, report.silent_seconds
            _note_step_seconds(pod, said)


def _deliver(attended: Attended, engine: MembershipEngine) -> None:
    for pod in attended.pods:
        if pod.released_at is None:
            engine.exchange(pod.name, _text(attended))


def _text(attended: Attended) -> str:
    generation = attended.generation
    if generation is None:
        return ""
    fields = {"generation": generation.number, "members": generation.members, "loss": attended.loss}
    return json.dumps(fields)


def _parsed(text: str) -> dict[str, Any]:
    """Return the used fields of a pod's report; {} if it is invalid."""
    try:
        data = json.loads(text)
        return {
            "address": _storable(data["address"])[:200],
            "state": str(data["state"])[:12],
            "generation": _count(data["generation"]),
            "busy_seconds": _seconds(data["busy_seconds"]),
            "epochs_done": _count(data["epochs_done"]),
            "epochs_exact": _count(data["epochs_exact"]),
            # Programs of older releases do not say it.
            "is_stuck": data.get("is_stuck") is True,
            "switches": [_parsed_switch(switch) for switch in data["switches"]],
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}


def _parsed_switch(switch: Mapping[str, Any]) -> dict[str, Any]:
    counts = ("generation", "step", "lost_steps", "repeated_steps", "interrupted_steps")
    found: dict[str, Any] = {name: _count(switch[name]) for name in counts}
    return found | {"pause_seconds": _seconds(switch["pause_seconds"])}


def _count(value: Any) -> int:
    return min(MOST, max(0, int(value)))


def _seconds(value: Any) -> float:
    if not math.isfinite(seconds := float(value)):
        raise ValueError(value)
    return seconds


def _storable(value: Any) -> str:
    """Return the value as text, without the NUL and lone surrogates that databases refuse."""
    return str(value).replace("\0", "").encode(errors="ignore").decode()


def _note_step_seconds(pod: Pod, said: Mapping[str, Any]) -> None:
    known, seconds = pod.step_seconds or 0.0, said["busy_seconds"]
    if seconds > 0 and abs(seconds - known) > STEP_CHANGE * max(known, seconds):
        Pod.objects.filter(pk=pod.pk).update(step_seconds=seconds)


def _note_switched(attended: Attended, now: datetime) -> None:
    """Store when all live members had switched to the newest generation, and what the switch cost; the slowest member
    counts. Does nothing until then."""
    generation = attended.generation
    if generation is None or generation.switched_at is not None:
        return
    alive = {pod.rank for pod in attended.pods if is_alive(pod)}
    switches = [
        [
            one
            for one in attended.said.get(rank, {}).get("switches", ())
            if one["generation"] == generation.number
        ]
        for rank in attended.members
        if rank in alive
    ]
    # The slowest member ends the pause, so the duration is unknown until all have switched.
    if not switches or not all(switches):
        return
    # A member that was interrupted may have switched to one generation twice; the last report counts.
    made = [found[-1] for found in switches]
    names = ("step", "pause_seconds", "lost_steps", "repeated_steps", "interrupted_steps")
    cost = {name: max(one[name] for one in made) for name in names}
    # The guard keeps the first result: another process may have written it.
    open_one = Generation.objects.filter(pk=generation.pk, switched_at=None)
    open_one.update(switched_at=now, **cost)
    generation.refresh_from_db()


def _note_epochs(attended: Attended) -> None:
    """Store how many epochs are done, and how many of them exactly, by the report of the member that has done most."""
    said = [attended.said[rank] for rank in attended.members if rank in attended.said]
    if attended.generation is None or not said:
        return
    furthest = max(said, key=lambda one: int(one["epochs_done"]))
    if furthest["epochs_done"] > attended.generation.epochs_done:
        fields = {name: furthest[name] for name in ("epochs_done", "epochs_exact")}
        Generation.objects.filter(pk=attended.generation.pk).update(**fields)


def _membership_state(attended: Attended, now: datetime) -> MembershipState:
    bounds = KINDS[attended.job.kind].bounds(attended.job.spec) or (1, 1)
    workers = {pod.rank: _worker(attended, pod) for pod in attended.pods}
    number = 0 if attended.generation is None else attended.generation.number
    sizes = KINDS[attended.job.kind].sizes(attended.job.spec)
    return MembershipState(
        number, attended.members, workers, bounds[0], _operation(attended.operation, now), sizes
    )


def _worker(attended: Attended, pod: Pod) -> Worker:
    said = attended.said.get(pod.rank, {})
    return Worker(
        pod.rank,
        is_alive(pod),
        said.get("state", ""),
        said.get("generation", 0),
        pod.exit_code,
        attended.silent.get(pod.rank, 0.0),
        said.get("is_stuck", False),
    )


def is_alive(pod: Pod) -> bool:
    """Return whether the pod's process may still run."""
    return pod.released_at is None and pod.state not in ("succeeded", "failed")


def _operation(row: ScaleOperation | None, now: datetime) -> Operation | None:
    if row is None:
        return None
    return Operation(
        tuple(row.joining),
        tuple(row.leaving),
        row.generation or 0,
        is_overdue=row.deadline is not None and row.deadline <= now,
        is_forced=row.cause in FORCED_CAUSES,
    )


def _carry_out(attended: Attended, decided: Answer, now: datetime) -> list[Event]:
    """Write what was decided, in the caller's transaction. Return the events."""
    events = []
    if decided.members is not None:
        events.append(_publish(attended, decided, now))
    if decided.outcome and attended.operation is not None:
        events += _advance_operation(attended, attended.operation, decided, now)
    for rank in decided.stop:
        has_left = attended.said.get(rank, {}).get("state") == rules.LEFT
        _order_ends(attended, [rank], STOP_GRACE_SECONDS, now, LEAVE_SECONDS if has_left else timedelta())
    _order_ends(attended, decided.kill, 0, now)
    return events


def _publish(attended: Attended, decided: Answer, now: datetime) -> Event:
    members = decided.members or ()
    addresses = _addresses(attended)
    attempt = next(pod.attempt_id for pod in attended.pods)
    attended.generation = Generation.objects.create(
        attempt_id=attempt,
        number=(0 if attended.generation is None else attended.generation.number) + 1,
        cause=decided.cause,
        members=[{"id": rank, "address": addresses[rank]} for rank in members],
        created_at=now,
    )
    if decided.cause in BREAKING:
        attended.loss = attended.generation.number
    Job.objects.filter(pk=attended.job.pk, attempt=attended.job.attempt).update(pods_started=len(members))
    data = {"generation": attended.generation.number, "workers": len(members), "cause": decided.cause}
    event = job_event("job.generation", attended.job, SYSTEM, data)
    event.message = (
        f"Generation {attended.generation.number} with {len(members)} workers: {CAUSES[decided.cause]}."
    )
    return event


def _addresses(attended: Attended) -> dict[int, str]:
    """Return the workers' addresses by rank: from their reports, else from earlier generations of the attempt."""
    earlier = Generation.objects.filter(
        attempt__job=attended.job, attempt__number=attended.job.attempt
    ).order_by("number")
    known = {int(member["id"]): str(member["address"]) for row in earlier for member in row.members}
    return known | {rank: said["address"] for rank, said in attended.said.items()}


CAUSES = {
    rules.START: "all are ready",
    rules.LOSS: "a worker was lost, the others go on",
    rules.REFORM: "the workers lost contact and formed a new generation",
    rules.GROW: "newcomers join",
    rules.SHRINK: "workers leave",
    rules.ROLL_BACK: "the change was rolled back",
}


def _advance_operation(
    attended: Attended, operation: ScaleOperation, decided: Answer, now: datetime
) -> list[Event]:
    if decided.outcome == rules.RUNNING and attended.generation is not None:
        fields = {"state": rules.RUNNING, "generation": attended.generation.number, "published_at": now}
        ScaleOperation.objects.filter(pk=operation.pk, state__in=rules.OPEN_STATES).update(**fields)
        return []
    _finish(operation, decided.outcome, decided.message, now)
    # A size requested by a user also applies to the next attempt; one forced by a reclaim does not.
    if decided.outcome == rules.SUCCEEDED and operation.cause == "user":
        spec = {**attended.job.spec, "workers": operation.to_workers}
        Job.objects.filter(pk=attended.job.pk).update(spec=spec, pods_wanted=operation.to_workers)
    return [_scaled_event(operation)]


def _finish(operation: ScaleOperation, state: str, message: str, now: datetime) -> None:
    cost: dict[str, Any] = {}
    if operation.generation:
        made = Generation.objects.filter(
            attempt__job=operation.job_id, attempt__number=operation.attempt, number=operation.generation
        )
        columns = ("lost_steps", "repeated_steps", "pause_seconds")
        cost = dict(made.values(*columns).first() or {})
    elif state == rules.ROLLED_BACK:
        # The workers got no new membership, so nothing was lost.
        cost = {"lost_steps": 0, "repeated_steps": 0, "pause_seconds": 0.0}
    if operation.message == GIVEN_UP:
        message = GIVEN_UP if state == rules.ROLLED_BACK else message
        operation.message = ""
    fields = {
        "state": state,
        "message": (message or operation.message)[:LONGEST_MESSAGE],
        "finished_at": now,
        **cost,
    }
    is_open = ScaleOperation.objects.filter(pk=operation.pk, state__in=rules.OPEN_STATES)
    is_ended_now = is_open.update(**fields) == 1
    operation.refresh_from_db()
    if is_ended_now and operation.job.attempt == operation.attempt:
        move(operation.job, (lifecycle.SCALING,), lifecycle.RUNNING)


def _scaled_event(operation: ScaleOperation) -> Event:
    data = {
        "operation": str(operation.pk),
        "state": operation.state,
        "from": operation.from_workers,
        "to": operation.to_workers,
    }
    event = job_event("job.scaled", operation.job, SYSTEM, data)
    sizes = f"From {operation.from_workers} to {operation.to_workers} workers"
    event.message = f"{sizes}: {operation.state.replace('_', ' ')}. {operation.message}".strip()
    return event


def _order_ends(
    attended: Attended, ranks: Sequence[int], grace_seconds: int, now: datetime, wait: timedelta = timedelta()
) -> None:
    """Queue stops for the pods with these ranks, and repeat a stop after REMIND_AFTER_SECONDS if the pod still runs.
    Pods with a stop of the same or a shorter grace period are skipped. `wait`: for how long the commands are not due
    yet."""
    names = {pod.name for pod in attended.pods if pod.rank in ranks and pod.released_at is None}
    orders = Command.objects.filter(kind=STOP_POD, subject_kind=POD, subject_id__in=names)
    is_recent = Q(finished_at__gt=now - timedelta(seconds=REMIND_AFTER_SECONDS))
    asked = orders.filter(is_recent | Q(state__in=Command.UNFINISHED)).values_list("subject_id", "payload")
    ordered = {name for name, payload in asked if payload.get("grace_seconds", 0) <= grace_seconds}
    stop_pods(attended.job.project, sorted(names - ordered), grace_seconds, timezone.now() + wait)
